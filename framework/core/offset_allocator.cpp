#include "framework/core/offset_allocator.h"

#include <algorithm>
#include <iterator>

namespace penstock {

i64 OffsetAllocator::end_after(i64 bytes) const {
  const i64 size = aligned(bytes);
  return by_size_.lower_bound({size, 0}) != by_size_.end() ? top_ : top_ + size;
}

i64 OffsetAllocator::allocate(i64 bytes) {
  const i64 size = aligned(bytes);
  if (size == 0) {
    return 0;
  }
  used_ += size;
  const auto gap = by_size_.lower_bound({size, 0});
  if (gap != by_size_.end()) {
    const auto [gap_size, offset] = *gap;
    by_size_.erase(gap);
    if (gap_size == size) {
      by_offset_.erase(offset);
    } else {
      // The rest of the gap keeps its map node under a new key.
      auto node = by_offset_.extract(offset);
      node.key() = offset + size;
      node.mapped() = gap_size - size;
      by_offset_.insert(std::move(node));
      by_size_.insert({gap_size - size, offset + size});
    }
    return offset;
  }
  // No gap ever touches top_ (release() lowers top_ instead), so the range simply grows.
  const i64 offset = top_;
  top_ += size;
  high_water_ = std::max(high_water_, top_);
  return offset;
}

void OffsetAllocator::release(i64 offset, i64 bytes) {
  i64 size = aligned(bytes);
  if (size == 0) {
    return;
  }
  used_ -= size;
  auto next = by_offset_.upper_bound(offset);
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      by_size_.erase({previous->second, previous->first});
      by_offset_.erase(previous);
    }
  }
  if (next != by_offset_.end() && offset + size == next->first) {
    size += next->second;
    by_size_.erase({next->second, next->first});
    by_offset_.erase(next);
  }
  if (offset + size == top_) {
    top_ = offset;
    return;
  }
  by_offset_.emplace(offset, size);
  by_size_.insert({size, offset});
}

}  // namespace penstock
