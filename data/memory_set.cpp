#include "data/memory_set.h"

#include <algorithm>
#include <cstring>

#include "framework/core/check.h"
#include "framework/core/random.h"

namespace penstock::data {
namespace {

constexpr std::size_t kAhead = 2;  // rows fetched ahead of the one that is copied

}  // namespace

MemorySet::MemorySet(std::string name, std::vector<Column> columns)
    : name_(std::move(name)), columns_(std::move(columns)) {
  check(!columns_.empty(), "data: {} has no fields", name_);
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const Field& f = columns_[c].field;
    const i64 rows = f.bytes() > 0 ? i64(columns_[c].rows.size()) / f.bytes() : 0;
    if (rows * f.bytes() != i64(columns_[c].rows.size())) {
      throw DataError(format("{}: {} bytes of \"{}\"; expected whole rows of {} bytes", name_,
                             columns_[c].rows.size(), f.name, f.bytes()));
    }
    if (c == 0) {
      size_ = rows;
    } else if (rows != size_) {
      throw DataError(format("{}: {} rows of \"{}\" and {} of \"{}\"; expected as many of each",
                             name_, size_, columns_[0].field.name, rows, f.name));
    }
    fields_.push_back(f);
  }
}

void MemorySet::load(const SampleKey& key, std::span<const std::byte> /*raw*/,
                     std::span<std::byte* const> fields) const {
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const auto bytes = std::size_t(fields_[c].bytes());
    std::memcpy(fields[c], columns_[c].rows.data() + std::size_t(key.index) * bytes, bytes);
  }
}

void MemorySet::load_many(std::span<const SampleKey> keys, std::span<std::byte* const> to) const {
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const auto bytes = std::size_t(fields_[c].bytes());
    const std::byte* rows = columns_[c].rows.data();
    std::byte* at = to[c];
    for (std::size_t k = 0; k < keys.size(); ++k, at += bytes) {
      // Rows lie anywhere: the one after the next is on its way while this one is copied.
      if (k + kAhead < keys.size()) {
        const std::byte* next = rows + std::size_t(keys[k + kAhead].index) * bytes;
        for (std::size_t line = 0; line < std::min<std::size_t>(bytes, 2048); line += 64) {
          __builtin_prefetch(next + line);
        }
      }
      std::memcpy(at, rows + std::size_t(keys[k].index) * bytes, bytes);
    }
  }
}

std::string MemorySet::describe(i64 index) const {
  return format("{} row {}", name_, index);
}

namespace {

class Part final : public Dataset {
 public:
  Part(std::shared_ptr<const Dataset> set, i64 begin, i64 count)
      : set_(std::move(set)), begin_(begin), count_(count) {}
  i64 size() const override { return count_; }
  std::span<const Field> fields() const override { return set_->fields(); }
  bool needs_fetch() const override { return set_->needs_fetch(); }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    set_->fetch(moved(key), raw);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> fields) const override {
    set_->load(moved(key), raw, fields);
  }
  void load_many(std::span<const SampleKey> keys,
                 std::span<std::byte* const> fields) const override {
    thread_local std::vector<SampleKey> moved_keys;
    moved_keys.clear();
    for (const SampleKey& key : keys) {
      moved_keys.push_back(moved(key));
    }
    set_->load_many(moved_keys, fields);
  }
  i64 targets(std::span<std::byte* const> fields) const override { return set_->targets(fields); }
  std::string describe(i64 index) const override { return set_->describe(begin_ + index); }
  bool cheap() const override { return set_->cheap(); }

 private:
  SampleKey moved(SampleKey key) const {
    key.index += begin_;
    return key;
  }
  std::shared_ptr<const Dataset> set_;
  i64 begin_;
  i64 count_;
};

class Augmented final : public Dataset {
 public:
  Augmented(std::shared_ptr<const Dataset> set, const Augment& augment)
      : set_(std::move(set)), augment_(augment) {
    bool found = false;
    for (const Field& f : set_->fields()) {
      if (f.name == "image") {
        check(f.dtype == DType::u8 && f.shape.rank() == 3,
              "augment: images of {}; expected u8 [H, W, C]", f.shape);
        h_ = f.shape[0];
        w_ = f.shape[1];
        c_ = f.shape[2];
        found = true;
        break;
      }
      ++image_;
    }
    if (!found) {
      throw ConfigError("data.augment: the data set has no images; expected none");
    }
  }
  i64 size() const override { return set_->size(); }
  std::span<const Field> fields() const override { return set_->fields(); }
  bool needs_fetch() const override { return set_->needs_fetch(); }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override { set_->fetch(key, raw); }
  i64 targets(std::span<std::byte* const> fields) const override { return set_->targets(fields); }
  std::string describe(i64 index) const override { return set_->describe(index); }
  bool cheap() const override { return set_->cheap() && h_ * w_ * c_ <= 8192; }

  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> fields) const override {
    set_->load(key, raw, fields);
    random::Generator g(key.seed, random::Stream::kAugment, std::uint32_t(key.epoch),
                        std::uint64_t(key.index));
    const i64 dy =
        augment_.pad > 0 ? i64(g.below(std::uint32_t(2 * augment_.pad + 1))) - augment_.pad : 0;
    const i64 dx =
        augment_.pad > 0 ? i64(g.below(std::uint32_t(2 * augment_.pad + 1))) - augment_.pad : 0;
    const bool flip = augment_.flip && g.below(2) == 1;
    if (dy == 0 && dx == 0 && !flip) {
      return;
    }
    thread_local std::vector<std::byte> source;
    const i64 row = w_ * c_;
    source.assign(fields[image_], fields[image_] + h_ * row);
    // Columns [left, right) of the result lie inside the source.
    const i64 shift = flip ? -dx : dx;
    const i64 left = std::clamp<i64>(-shift, 0, w_);
    const i64 right = std::clamp<i64>(w_ - shift, left, w_);
    std::byte* to = fields[image_];
    for (i64 y = 0; y < h_; ++y, to += row) {
      const i64 from_y = y + dy;
      if (from_y < 0 || from_y >= h_) {
        std::memset(to, 0, std::size_t(row));
        continue;
      }
      const std::byte* from = source.data() + from_y * row;
      std::memset(to, 0, std::size_t(left * c_));
      std::memset(to + right * c_, 0, std::size_t((w_ - right) * c_));
      if (!flip) {
        std::memcpy(to + left * c_, from + (left + dx) * c_, std::size_t((right - left) * c_));
        continue;
      }
      // The result's column x shows the source's w - 1 - x + dx.
      const std::byte* pixel = from + (w_ - 1 - left + dx) * c_;
      std::byte* at = to + left * c_;
      for (i64 x = left; x < right; ++x, pixel -= c_, at += c_) {
        for (i64 c = 0; c < c_; ++c) {
          at[c] = pixel[c];
        }
      }
    }
  }

 private:
  std::shared_ptr<const Dataset> set_;
  Augment augment_;
  std::size_t image_ = 0;
  i64 h_ = 0, w_ = 0, c_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> part_of(std::shared_ptr<const Dataset> set, i64 begin, i64 count) {
  check(begin >= 0 && count >= 0 && begin + count <= set->size(), "data: samples {} to {} of {}",
        begin, begin + count, set->size());
  return std::make_shared<Part>(std::move(set), begin, count);
}

std::shared_ptr<const Dataset> augmented(std::shared_ptr<const Dataset> set,
                                         const Augment& augment) {
  if (augment.pad <= 0 && !augment.flip) {
    return set;
  }
  return std::make_shared<Augmented>(std::move(set), augment);
}

}  // namespace penstock::data
