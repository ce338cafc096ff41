// Deterministic best-fit placement of blocks in one growing address range. Pure host arithmetic:
// the same sequence of calls gives the same offsets on every device, so the high-water mark of a
// plan is the real one, fragmentation included.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "framework/core/target.h"

namespace penstock {

class OffsetAllocator {
 public:
  // Every block begins at, and occupies, a multiple of this: a GPU's widest access, two cache
  // lines, and what vendor libraries expect of a pointer.
  static constexpr i64 kAlignment = 256;
  static constexpr i64 aligned(i64 bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Offset for a block: the smallest free gap that fits (the lowest of equals), else the end of the
  // range. Zero bytes take no room.
  i64 allocate(i64 bytes);
  // Where allocate(bytes) would end without changing anything: what must be committed first.
  i64 end_after(i64 bytes) const;
  // Gives back a block obtained with the same size.
  void release(i64 offset, i64 bytes);

  i64 used() const { return used_; }
  // One past the last byte in use.
  i64 top() const { return top_; }
  // The largest top() since the last reset.
  i64 high_water() const { return high_water_; }
  void reset_high_water() { high_water_ = top_; }

 private:
  std::map<i64, i64> by_offset_;           // free gaps below top_: offset -> size
  std::set<std::pair<i64, i64>> by_size_;  // the same gaps: (size, offset)
  i64 used_ = 0;
  i64 top_ = 0;
  i64 high_water_ = 0;
};

}  // namespace penstock
