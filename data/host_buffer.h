// Host memory of the sample ring: one mapping of huge pages, pinned when a GPU reads from it.
#pragma once

#include <cstddef>

#include "framework/core/target.h"

namespace penstock::data {

class HostBuffer {
 public:
  // `bytes` of zeroed memory. `pin`: registered with the GPU; where that is refused it stays
  // pageable, with one warning. Throws ConfigError naming loader.max_bytes when there is no memory.
  HostBuffer(i64 bytes, bool pin);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() const { return data_; }
  i64 bytes() const { return bytes_; }
  bool pinned() const { return pinned_; }

 private:
  std::byte* data_ = nullptr;
  i64 bytes_ = 0;
  bool pinned_ = false;
};

}  // namespace penstock::data
