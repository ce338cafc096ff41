// Vendor libraries read and write 16 bytes at a time; a view may begin anywhere. Operands that do
// not begin at such an address go through a copy.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "framework/core/tensor.h"

namespace penstock::kernels {

inline bool is_aligned(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0;
}

// Copies of misaligned operands, one per address; those that were written go back at the end.
class AlignedCopies {
 public:
  // `t` itself, or its copy.
  Tensor use(const Tensor& t, bool written = false) {
    if (is_aligned(t)) {
      return t;
    }
    for (Entry& e : entries_) {
      if (e.original.raw() == t.raw()) {
        e.written = e.written || written;
        return e.copy;
      }
    }
    entries_.push_back({t, t.to(t.device(), MemoryClass::kWorkspace), written});
    return entries_.back().copy;
  }
  void write_back() const {
    for (const Entry& e : entries_) {
      if (e.written) {
        e.original.copy_from(e.copy);
      }
    }
  }

 private:
  struct Entry {
    Tensor original, copy;
    bool written;
  };
  std::vector<Entry> entries_;
};

}  // namespace penstock::kernels
