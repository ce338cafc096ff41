#include "data/formats.h"

#include <algorithm>
#include <cstring>

#include "data/files.h"
#include "data/memory_set.h"
#include "framework/core/check.h"
#include "framework/core/random.h"

namespace penstock::data {
namespace {

constexpr i64 kMaxSamples = i64{1} << 31;

std::uint32_t big_endian(std::span<const std::byte> b, std::size_t at) {
  return (std::uint32_t(b[at]) << 24) | (std::uint32_t(b[at + 1]) << 16) |
         (std::uint32_t(b[at + 2]) << 8) | std::uint32_t(b[at + 3]);
}

i64 idx_images_bytes(std::span<const std::byte> header, const std::string& path) {
  if (big_endian(header, 0) != 0x00000803) {
    throw DataError(format("{}: not an IDX file of images; expected magic 2051, found {}", path,
                           big_endian(header, 0)));
  }
  const i64 n = big_endian(header, 4);
  const i64 h = big_endian(header, 8);
  const i64 w = big_endian(header, 12);
  if (n < 1 || n > kMaxSamples || h < 1 || h > 16384 || w < 1 || w > 16384) {
    throw DataError(format("{}: {} images of {} x {} pixels; expected 1 to 16384 pixels a side", path,
                           n, h, w));
  }
  return 16 + n * h * w;
}

i64 idx_labels_bytes(std::span<const std::byte> header, const std::string& path) {
  if (big_endian(header, 0) != 0x00000801) {
    throw DataError(format("{}: not an IDX file of labels; expected magic 2049, found {}", path,
                           big_endian(header, 0)));
  }
  return 8 + i64(big_endian(header, 4));
}

MemorySet::Column label_column(const std::vector<std::byte>& labels, std::size_t begin, i64 classes,
                               const std::string& path) {
  std::vector<std::byte> wide((labels.size() - begin) * 8);
  for (std::size_t i = begin; i < labels.size(); ++i) {
    const auto label = i64(labels[i]);
    if (label >= classes) {
      throw DataError(format("{}: label {} of sample {}; expected 0 to {}", path, label, i - begin,
                             classes - 1));
    }
    std::memcpy(wide.data() + (i - begin) * 8, &label, 8);
  }
  return {.field = {.name = "label", .dtype = DType::i64, .shape = {}}, .rows = std::move(wide)};
}

// `name` in `folder`, plain or with .gz behind it.
std::string plain_or_gz(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  return file_exists(path) ? path : path + ".gz";
}

}  // namespace

std::shared_ptr<const Dataset> open_idx(const std::string& images, const std::string& labels,
                                        i64 classes) {
  std::vector<std::byte> pixels = read_inflated(images, 16, idx_images_bytes);
  const std::vector<std::byte> classes_of = read_inflated(labels, 8, idx_labels_bytes);
  const Shape shape = {i64(big_endian(pixels, 8)), i64(big_endian(pixels, 12)), 1};
  pixels.erase(pixels.begin(), pixels.begin() + 16);
  std::vector<MemorySet::Column> columns;
  columns.push_back(
      {.field = {.name = "image", .dtype = DType::u8, .shape = shape}, .rows = std::move(pixels)});
  columns.push_back(label_column(classes_of, 8, classes, labels));
  return std::make_shared<MemorySet>(images, std::move(columns));
}

std::shared_ptr<const Dataset> open_mnist(const std::string& folder, bool train) {
  const std::string prefix = train ? "train" : "t10k";
  const std::string images = plain_or_gz(folder, prefix + "-images-idx3-ubyte");
  if (!file_exists(images)) {
    throw DataError(format("data.dir: {} has no {}-images-idx3-ubyte(.gz); it needs the four IDX files, as "
                           "Debian's package dataset-fashion-mnist installs them",
                           folder, prefix));
  }
  return open_idx(images, plain_or_gz(folder, prefix + "-labels-idx1-ubyte"), 10);
}

std::shared_ptr<const Dataset> open_cifar(const std::string& folder, bool train, int classes) {
  const bool fine = classes == 100;
  std::vector<std::string> files;
  if (fine) {
    files = {folder + (train ? "/train.bin" : "/test.bin")};
  } else if (train) {
    for (int i = 1; i <= 5; ++i) {
      files.push_back(folder + "/data_batch_" + std::to_string(i) + ".bin");
    }
  } else {
    files = {folder + "/test_batch.bin"};
  }
  const std::size_t labels = fine ? 2 : 1;
  const std::size_t record = labels + 3072;
  std::vector<std::byte> pixels;
  std::vector<std::byte> classes_of;
  for (const std::string& path : files) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    if (bytes.empty() || bytes.size() % record != 0) {
      throw DataError(format("{}: {} bytes; expected a multiple of {}, the size of one record", path,
                             bytes.size(), record));
    }
    const std::size_t count = bytes.size() / record;
    const std::size_t before = pixels.size();
    pixels.resize(before + count * 3072);
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* from = bytes.data() + i * record;
      classes_of.push_back(from[labels - 1]);
      // Planes of red, green and blue become pixels.
      std::byte* to = pixels.data() + before + i * 3072;
      for (std::size_t p = 0; p < 1024; ++p) {
        for (std::size_t c = 0; c < 3; ++c) {
          to[p * 3 + c] = from[labels + c * 1024 + p];
        }
      }
    }
  }
  std::vector<MemorySet::Column> columns;
  columns.push_back({.field = {.name = "image", .dtype = DType::u8, .shape = {32, 32, 3}},
                     .rows = std::move(pixels)});
  columns.push_back(label_column(classes_of, 0, classes, files.front()));
  return std::make_shared<MemorySet>(folder, std::move(columns));
}

// ---- tokens -------------------------------------------------------------------------------------

namespace {

constexpr std::int32_t kShardMagic = 20240520;
constexpr std::size_t kShardHeader = 1024;

// Windows over a stream of tokens that lies in mapped files.
class TokenSet final : public Dataset {
 public:
  TokenSet(std::vector<MappedFile> files, std::size_t token_bytes, const TokenOptions& options)
      : files_(std::move(files)), token_bytes_(token_bytes), options_(options) {
    const i64 t = options_.sequence;
    if (t < 1) {
      throw ConfigError(format("data.sequence: {}; expected at least 1", t));
    }
    i64 total = 0;
    for (const MappedFile& f : files_) {
      std::span<const std::byte> bytes = f.bytes();
      if (token_bytes_ == 2 && bytes.size() >= kShardHeader) {
        std::int32_t header[3];
        std::memcpy(header, bytes.data(), sizeof header);
        if (header[0] == kShardMagic) {
          if (header[1] != 1 ||
              i64(header[2]) * 2 + i64(kShardHeader) != i64(bytes.size())) {
            throw DataError(format("{}: its header says version {} and {} tokens, and the file has {} bytes",
                                   f.path(), header[1], header[2], bytes.size()));
          }
          bytes = bytes.subspan(kShardHeader);
        }
      }
      if (bytes.size() % token_bytes_ != 0) {
        throw DataError(format("{}: {} bytes; expected whole 16-bit tokens", f.path(), bytes.size()));
      }
      spans_.push_back(bytes);
      begins_.push_back(total);
      total += i64(bytes.size() / token_bytes_);
    }
    first_ = i64(double(total) * options_.begin);
    const i64 last = i64(double(total) * options_.end);
    size_ = (last - first_ - 1) / t;
    if (size_ < 1) {
      throw DataError(format("{}: {} tokens are not enough for one sequence of {} and its target",
                             files_.empty() ? "tokens" : files_.front().path(), last - first_, t));
    }
    fields_ = {{.name = "input", .dtype = DType::i32, .shape = {t}},
               {.name = "target", .dtype = DType::i32, .shape = {t}}};
  }

  i64 size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  bool cheap() const override { return options_.sequence <= 4096; }
  i64 targets(std::span<std::byte* const> /*fields*/) const override { return options_.sequence; }
  std::string describe(i64 index) const override {
    return format("{} from token {}", files_[file_of(first_ + index * options_.sequence)].path(),
                  first_ + index * options_.sequence);
  }

  void load(const SampleKey& key, std::span<const std::byte> /*raw*/,
            std::span<std::byte* const> fields) const override {
    const i64 t = options_.sequence;
    i64 at = first_ + key.index * t;
    auto* input = reinterpret_cast<std::int32_t*>(fields[0]);
    auto* target = reinterpret_cast<std::int32_t*>(fields[1]);
    std::size_t file = file_of(at);
    for (i64 i = 0; i <= t; ++i, ++at) {
      while (at - begins_[file] >= i64(spans_[file].size() / token_bytes_)) {
        ++file;
      }
      const std::byte* p = spans_[file].data() + std::size_t(at - begins_[file]) * token_bytes_;
      const std::int32_t token = token_bytes_ == 1 ? std::int32_t(p[0])
                                                   : std::int32_t(p[0]) | (std::int32_t(p[1]) << 8);
      if (options_.vocabulary > 0 && token >= options_.vocabulary) {
        throw DataError(format("{}: token {} at {}; expected less than the vocabulary, {}",
                               files_[file].path(), token, at, options_.vocabulary));
      }
      if (i < t) {
        input[i] = token;
      }
      if (i > 0) {
        target[i - 1] = token;
      }
    }
  }

 private:
  std::size_t file_of(i64 token) const {
    return std::size_t(std::upper_bound(begins_.begin(), begins_.end(), token) - begins_.begin()) - 1;
  }

  std::vector<MappedFile> files_;
  std::vector<std::span<const std::byte>> spans_;
  std::vector<i64> begins_;
  std::size_t token_bytes_;
  TokenOptions options_;
  std::vector<Field> fields_;
  i64 first_ = 0;
  i64 size_ = 0;
};

class Masked final : public Dataset {
 public:
  Masked(std::shared_ptr<const Dataset> set, const Masking& masking)
      : set_(std::move(set)), masking_(masking) {
    fields_.assign(set_->fields().begin(), set_->fields().end());
    time_ = fields_[0].shape[0];
    fields_.push_back({.name = "length", .dtype = DType::i32, .shape = {}});
  }
  i64 size() const override { return set_->size(); }
  std::span<const Field> fields() const override { return fields_; }
  std::string describe(i64 index) const override { return set_->describe(index); }
  bool cheap() const override { return false; }
  i64 targets(std::span<std::byte* const> fields) const override {
    const auto* target = reinterpret_cast<const std::int32_t*>(fields[1]);
    return time_ - std::count(target, target + time_, -100);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> fields) const override {
    set_->load(key, raw, fields.first(2));
    auto* input = reinterpret_cast<std::int32_t*>(fields[0]);
    auto* target = reinterpret_cast<std::int32_t*>(fields[1]);
    random::Generator g(key.seed, random::Stream::kMask, std::uint32_t(key.epoch),
                        std::uint64_t(key.index));
    for (i64 i = 0; i < time_; ++i) {
      if (double(g.uniform()) >= masking_.probability) {
        target[i] = -100;
        continue;
      }
      target[i] = input[i];
      const float which = g.uniform();
      if (which < 0.8F) {
        input[i] = std::int32_t(masking_.mask_token);
      } else if (which < 0.9F) {
        input[i] = std::int32_t(g.below(std::uint32_t(masking_.vocabulary)));
      }
    }
    const auto length = std::int32_t(time_);
    std::memcpy(fields[2], &length, 4);
  }

 private:
  std::shared_ptr<const Dataset> set_;
  Masking masking_;
  std::vector<Field> fields_;
  i64 time_ = 0;
};

std::vector<MappedFile> mapped(const std::vector<std::string>& files) {
  std::vector<MappedFile> all;
  all.reserve(files.size());
  for (const std::string& f : files) {
    all.emplace_back(f);
  }
  return all;
}

}  // namespace

std::shared_ptr<const Dataset> open_tokens(const std::vector<std::string>& files,
                                           const TokenOptions& options) {
  if (files.empty()) {
    throw ConfigError("data.train: no token file is named");
  }
  return std::make_shared<TokenSet>(mapped(files), 2, options);
}

std::shared_ptr<const Dataset> open_text(const std::string& file, const TokenOptions& options) {
  return std::make_shared<TokenSet>(mapped({file}), 1, options);
}

std::shared_ptr<const Dataset> masked(std::shared_ptr<const Dataset> tokens, const Masking& masking) {
  if (masking.mask_token < 0 || masking.mask_token >= masking.vocabulary) {
    throw ConfigError(format("data.mask_token: {}; expected 0 to {}", masking.mask_token,
                             masking.vocabulary - 1));
  }
  return std::make_shared<Masked>(std::move(tokens), masking);
}

}  // namespace penstock::data
