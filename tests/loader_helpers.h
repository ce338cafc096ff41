// Data sets that tell what a loader did with them, and what came out of it.
#pragma once

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "framework/core/check.h"

namespace penstock::data {

// Sample i holds i and the epoch it was loaded in, at the front of `words` words.
class Counting : public Dataset {
 public:
  explicit Counting(i64 size, bool fetches = false, i64 words = 2)
      : size_(size), fetches_(fetches) {
    fields_ = {{.name = "value", .dtype = DType::i64, .shape = {words}}};
  }
  i64 size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  bool needs_fetch() const override { return fetches_; }
  bool cheap() const override { return !fetches_; }
  std::string describe(i64 index) const override { return format("file-{}", index); }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    raw.resize(8);
    std::memcpy(raw.data(), &key.index, 8);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    std::int64_t values[2] = {key.index, key.epoch};
    if (fetches_) {
      std::memcpy(values, raw.data(), 8);
    }
    std::memcpy(to[0], values, 16);
  }

 private:
  i64 size_;
  bool fetches_;
  std::vector<Field> fields_;
};

struct Seen {
  std::vector<i64> index, epoch;
  void take(const Batch& b, i64 words = 2) {
    for (const Rows& rows : b.fields[0]) {
      const auto* v = reinterpret_cast<const std::int64_t*>(rows.data);
      for (i64 i = 0; i < rows.count; ++i) {
        index.push_back(v[words * i]);
        epoch.push_back(v[words * i + 1]);
      }
    }
  }
};

inline LoaderOptions options_for(std::uint64_t seed, i64 batch, i64 slots, i64 words = 2) {
  return {.sampler = {.seed = seed},
          .batch = batch,
          .max_workers = 8,
          .max_bytes = 4096 + slots * 8 * words};
}

}  // namespace penstock::data
