// Data sets whose samples lie in memory (or in a mapped file): arrays with one row per sample.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace penstock::data {

// Rows of every field, one after the other. Copying them is cheap.
class MemorySet final : public Dataset {
 public:
  struct Column {
    Field field;
    std::vector<std::byte> rows;  // size() x field.bytes()
  };
  // Throws DataError unless all columns have the same number of rows. `name` is for messages.
  MemorySet(std::string name, std::vector<Column> columns);

  i64 size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> fields) const override;
  void load_many(std::span<const SampleKey> keys,
                 std::span<std::byte* const> fields) const override;
  std::string describe(i64 index) const override;
  bool cheap() const override { return true; }
  const std::vector<Column>& columns() const { return columns_; }

 private:
  std::string name_;
  std::vector<Column> columns_;
  std::vector<Field> fields_;
  i64 size_ = 0;
};

// The first `count` samples of a set, or those from `begin` on.
std::shared_ptr<const Dataset> part_of(std::shared_ptr<const Dataset> set, i64 begin, i64 count);

// Images "image" u8 [H, W, C] that are moved and mirrored as they are loaded: padded by `pad` zeros
// on every side and cropped back at a random place, flipped left to right half of the time; drawn
// from (seed, epoch, index).
struct Augment {
  i64 pad = 0;
  bool flip = false;
};
std::shared_ptr<const Dataset> augmented(std::shared_ptr<const Dataset> set,
                                         const Augment& augment);

}  // namespace penstock::data
