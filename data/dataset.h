// What a data set is to the loader: fields per sample, a size, and how one sample is brought in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framework/core/dtype.h"
#include "framework/core/shape.h"

namespace penstock::data {

// One array of every sample: "image" u8 [28, 28, 1], "label" i64 []. All samples agree on it.
struct Field {
  std::string name;
  DType dtype = DType::u8;
  Shape shape;
  i64 bytes() const { return shape.numel() * size_of(dtype); }
};

// Which sample is wanted, and everything its randomness may depend on. Never the worker, the batch
// or the time: augmentation is drawn from random::Stream::kAugment keyed by (seed, epoch, index).
struct SampleKey {
  i64 index = 0;  // in [0, size())
  i64 epoch = 0;
  std::uint64_t seed = 0;
};

// Raw bytes of one sample between fetch() and load(); reused, so it allocates rarely.
using FetchBuffer = std::vector<std::byte>;

class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset() = default;

  virtual i64 size() const = 0;
  virtual std::span<const Field> fields() const = 0;

  // True when samples must be read from storage before they are decoded; the loader then calls
  // fetch() on I/O threads, apart from load().
  virtual bool needs_fetch() const { return false; }
  // Blocking read of the sample's raw bytes. Throws DataError naming the file.
  virtual void fetch(const SampleKey& key, FetchBuffer& raw) const;
  // Writes every field of the sample to fields[i] (bytes() each). `raw` holds what fetch() read,
  // empty without needs_fetch(). Called from many threads at once. Throws DataError naming file or
  // sample.
  virtual void load(const SampleKey& key, std::span<const std::byte> raw,
                    std::span<std::byte* const> fields) const = 0;
  // Several samples at once, without needs_fetch(): field i's rows lie one after the other from
  // fields[i] on. Throws what load() throws, not saying at which sample; the caller then loads them
  // one by one.
  virtual void load_many(std::span<const SampleKey> keys, std::span<std::byte* const> fields) const;

  // Number of targets of the sample that the loss counts (a token sequence has many); decides the
  // loss denominator. Read after load(), from the written fields.
  virtual i64 targets(std::span<std::byte* const> fields) const;
  // The file behind a sample, for messages: "train/cat/7.jpeg".
  virtual std::string describe(i64 index) const;
  // Cost class: samples that take less than about 20 us are handed out in chunks.
  virtual bool cheap() const { return false; }
};

}  // namespace penstock::data
