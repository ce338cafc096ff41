#include "data/image/cache.h"

#include <cstdlib>
#include <cstring>

namespace penstock::data::image {

// Bytes follow the header in the same block.
struct SampleCache::Entry {
  i64 bytes;
  i64 width;
  i64 height;
  int channels;
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(this + 1); }
};

SampleCache::SampleCache(i64 size, const CacheOptions& options) : options_(options), size_(size) {
  const i64 table = size * i64(sizeof(void*));
  if (options.max_bytes > table) {
    entries_ = std::make_unique<std::atomic<Entry*>[]>(std::size_t(size));
    used_ = table;
  }
}

SampleCache::~SampleCache() {
  for (i64 i = 0; entries_ != nullptr && i < size_; ++i) {
    std::free(entries_[std::size_t(i)].load(std::memory_order_relaxed));
  }
}

bool SampleCache::holds(i64 index) const {
  return enabled() && entries_[std::size_t(index)].load(std::memory_order_acquire) != nullptr;
}

std::span<const std::byte> SampleCache::file(i64 index) const {
  if (!enabled() || options_.kind != CacheKind::kFiles) {
    return {};
  }
  const Entry* entry = entries_[std::size_t(index)].load(std::memory_order_acquire);
  return entry == nullptr ? std::span<const std::byte>()
                          : std::span(entry->data(), std::size_t(entry->bytes));
}

Pixels SampleCache::pixels(i64 index) const {
  if (!enabled() || options_.kind != CacheKind::kPixels) {
    return {};
  }
  const Entry* entry = entries_[std::size_t(index)].load(std::memory_order_acquire);
  if (entry == nullptr) {
    return {};
  }
  return {.data = reinterpret_cast<const std::uint8_t*>(entry->data()),
          .stride = entry->width * entry->channels,
          .width = entry->width,
          .height = entry->height,
          .channels = entry->channels};
}

SampleCache::Entry* SampleCache::reserve(i64 index, i64 bytes) {
  if (!enabled() || holds(index)) {
    return nullptr;
  }
  const i64 total = bytes + i64(sizeof(Entry));
  if (used_.fetch_add(total, std::memory_order_relaxed) + total > options_.max_bytes) {
    used_.fetch_sub(total, std::memory_order_relaxed);
    return nullptr;
  }
  // No exception when memory is short: the sample is then simply not cached.
  auto* entry = static_cast<Entry*>(std::malloc(std::size_t(total)));
  if (entry == nullptr) {
    used_.fetch_sub(total, std::memory_order_relaxed);
    return nullptr;
  }
  *entry = {.bytes = bytes, .width = 0, .height = 0, .channels = 0};
  return entry;
}

void SampleCache::publish(i64 index, Entry* entry) {
  Entry* empty = nullptr;
  if (entries_[std::size_t(index)].compare_exchange_strong(empty, entry,
                                                           std::memory_order_acq_rel)) {
    count_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  used_.fetch_sub(entry->bytes + i64(sizeof(Entry)), std::memory_order_relaxed);
  std::free(entry);
}

void SampleCache::store_file(i64 index, std::span<const std::byte> file) {
  Entry* entry = reserve(index, i64(file.size()));
  if (entry != nullptr) {
    std::memcpy(entry->data(), file.data(), file.size());
    publish(index, entry);
  }
}

void SampleCache::store_pixels(i64 index, const Pixels& pixels) {
  const i64 row = pixels.width * pixels.channels;
  Entry* entry = reserve(index, row * pixels.height);
  if (entry != nullptr) {
    for (i64 y = 0; y < pixels.height; ++y) {
      std::memcpy(entry->data() + y * row, pixels.data + y * pixels.stride, std::size_t(row));
    }
    entry->width = pixels.width;
    entry->height = pixels.height;
    entry->channels = pixels.channels;
    publish(index, entry);
  }
}

}  // namespace penstock::data::image
