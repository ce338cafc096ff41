// Samples kept in memory: filled as they come, up to a number of bytes, never evicted. Evicting
// would help nothing, since an epoch visits every sample once; a cache of c of n samples saves c /
// n of the work, and the same c samples for the whole run.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/image/decode.h"
#include "framework/core/target.h"

namespace penstock::data::image {

// kFiles saves reading; kPixels saves reading and decoding, at three bytes a pixel.
enum class CacheKind : std::uint8_t { kFiles, kPixels };

struct CacheOptions {
  i64 max_bytes = 0;  // 0: no cache
  CacheKind kind = CacheKind::kFiles;
};

// All members may be called from many threads at once.
class SampleCache {
 public:
  // For samples [0, size). The table itself, 8 bytes a sample, counts towards the cap.
  SampleCache(i64 size, const CacheOptions& options);
  ~SampleCache();
  SampleCache(const SampleCache&) = delete;
  SampleCache& operator=(const SampleCache&) = delete;

  bool enabled() const { return entries_ != nullptr; }
  CacheKind kind() const { return options_.kind; }
  bool holds(i64 index) const;
  // Empty unless a file was stored; valid while the cache lives.
  std::span<const std::byte> file(i64 index) const;
  // data null unless pixels were stored; valid while the cache lives.
  Pixels pixels(i64 index) const;
  // Copies in what fits under the cap; does nothing when it does not, or when the sample is there.
  void store_file(i64 index, std::span<const std::byte> file);
  void store_pixels(i64 index, const Pixels& pixels);
  i64 bytes() const { return used_.load(std::memory_order_relaxed); }
  i64 count() const { return count_.load(std::memory_order_relaxed); }

 private:
  struct Entry;
  Entry* reserve(i64 index, i64 bytes);
  void publish(i64 index, Entry* entry);

  CacheOptions options_;
  i64 size_;
  std::unique_ptr<std::atomic<Entry*>[]> entries_;
  std::atomic<i64> used_{0};
  std::atomic<i64> count_{0};
};

}  // namespace penstock::data::image
