// Sequences of tokens: windows over shards and text, and masking.
#include <algorithm>
#include <cstring>

#include "data/files.h"
#include "data/formats.h"
#include "framework/core/check.h"
#include "framework/core/random.h"

namespace penstock::data {
namespace {

// llm.c's header: 256 words of 32 bits, the first three of which are magic, version and number of
// tokens.
constexpr std::int32_t kShardMagic = 20240520;
constexpr std::int32_t kWideShardMagic = 20240801;
constexpr i64 kShardHeader = 1024;
constexpr i64 kMaxSequence = i64{1} << 24;

struct Shard {
  DataFile file;
  i64 offset = 0;  // bytes before the first token
  i64 begin = 0;   // tokens in the shards before
  i64 count = 0;   // tokens
};

Shard open_shard(const std::string& path, i64 token_bytes) {
  Shard s{.file = DataFile(path)};
  i64 bytes = s.file.bytes();
  if (token_bytes == 2 && bytes >= kShardHeader) {
    std::int32_t header[3];
    s.file.read(0, std::as_writable_bytes(std::span(header)));
    if (header[0] == kWideShardMagic) {
      throw DataError(
          format("{}: holds tokens of 32 bits; expected 16 bits, a vocabulary of at most "
                 "65536",
                 path));
    }
    if (header[0] == kShardMagic) {
      if (header[1] != 1 || i64(header[2]) * 2 + kShardHeader != bytes) {
        throw DataError(
            format("{}: its header says version {} and {} tokens, and the file has {} "
                   "bytes; expected version 1 and {} bytes",
                   path, header[1], header[2], bytes, i64(header[2]) * 2 + kShardHeader));
      }
      s.offset = kShardHeader;
      bytes -= kShardHeader;
    }
  }
  if (bytes % token_bytes != 0) {
    throw DataError(format("{}: {} bytes; expected whole 16-bit tokens", path, bytes));
  }
  s.count = bytes / token_bytes;
  return s;
}

// Widens `count` tokens; the largest of them.
template <class Narrow>
std::int32_t widen(const std::byte* from, std::int32_t* to, i64 count) {
  std::int32_t most = 0;
  for (i64 i = 0; i < count; ++i) {
    Narrow token;
    std::memcpy(&token, from + i * i64(sizeof token), sizeof token);
    to[i] = std::int32_t(token);
    most = std::max(most, to[i]);
  }
  return most;
}

// Windows over a stream of tokens that lies in files.
class TokenSet final : public Dataset {
 public:
  TokenSet(std::vector<Shard> shards, i64 token_bytes, const TokenOptions& options)
      : shards_(std::move(shards)), token_bytes_(token_bytes), options_(options) {
    const i64 t = options_.sequence;
    i64 total = 0;
    for (Shard& s : shards_) {
      s.begin = total;
      total += s.count;
    }
    first_ = i64(double(total) * options_.begin);
    const i64 last = i64(double(total) * options_.end);
    // Windows do not overlap, and each needs the token behind it as its last target.
    size_ = (last - first_ - 1) / t;
    if (size_ < 1) {
      throw DataError(
          format("{}: {} tokens{} are not enough for one sequence of {} and its target; "
                 "expected at least {}",
                 shards_.front().file.path(), last - first_,
                 last - first_ == total ? "" : format(" of {}", total), t, t + 1));
    }
    fields_ = {{.name = "input", .dtype = DType::i32, .shape = {t}},
               {.name = "target", .dtype = DType::i32, .shape = {t}}};
  }

  i64 size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  bool cheap() const override { return options_.sequence <= 4096; }
  i64 targets(std::span<std::byte* const> /*fields*/) const override { return options_.sequence; }
  std::string describe(i64 index) const override {
    const i64 token = first_ + index * options_.sequence;
    const Shard& s = *shard_of(token);
    return format("{} from token {}", s.file.path(), token - s.begin);
  }

  void load(const SampleKey& key, std::span<const std::byte> /*raw*/,
            std::span<std::byte* const> fields) const override {
    const i64 t = options_.sequence;
    thread_local std::vector<std::int32_t> tokens;
    thread_local std::vector<std::byte> bytes;
    tokens.resize(std::size_t(t) + 1);
    bytes.resize((std::size_t(t) + 1) * std::size_t(token_bytes_));
    i64 at = first_ + key.index * t;
    auto shard = shard_of(at);
    for (i64 have = 0; have <= t; ++shard) {
      const i64 inside = at - shard->begin;
      const i64 count = std::min(t + 1 - have, shard->count - inside);
      shard->file.read(shard->offset + inside * token_bytes_,
                       {bytes.data(), std::size_t(count * token_bytes_)});
      std::int32_t* to = tokens.data() + have;
      const std::int32_t most = token_bytes_ == 1 ? widen<std::uint8_t>(bytes.data(), to, count)
                                                  : widen<std::uint16_t>(bytes.data(), to, count);
      if (options_.vocabulary > 0 && count > 0 && most >= options_.vocabulary) {
        throw DataError(
            format("{}: token {} at {}; expected less than the vocabulary, {}", shard->file.path(),
                   most, inside + (std::find(to, to + count, most) - to), options_.vocabulary));
      }
      have += count;
      at += count;
    }
    std::memcpy(fields[0], tokens.data(), std::size_t(t) * 4);
    std::memcpy(fields[1], tokens.data() + 1, std::size_t(t) * 4);
  }

 private:
  std::vector<Shard>::const_iterator shard_of(i64 token) const {
    return std::upper_bound(shards_.begin(), shards_.end(), token,
                            [](i64 at, const Shard& s) { return at < s.begin; }) -
           1;
  }

  std::vector<Shard> shards_;
  i64 token_bytes_;
  TokenOptions options_;
  std::vector<Field> fields_;
  i64 first_ = 0;
  i64 size_ = 0;
};

std::shared_ptr<const Dataset> open_stream(const std::vector<std::string>& files, i64 token_bytes,
                                           const TokenOptions& options) {
  if (files.empty()) {
    throw ConfigError("data.train: no token file is named");
  }
  if (options.sequence < 1 || options.sequence > kMaxSequence) {
    throw ConfigError(
        format("data.sequence: {}; expected 1 to {}", options.sequence, kMaxSequence));
  }
  if (!(options.begin >= 0 && options.begin <= options.end && options.end <= 1)) {
    throw ConfigError(
        format("data.validation_share: the part from {} to {} of the tokens; expected "
               "shares of 0 to 1",
               options.begin, options.end));
  }
  std::vector<Shard> shards;
  shards.reserve(files.size());
  for (const std::string& f : files) {
    shards.push_back(open_shard(f, token_bytes));
  }
  return std::make_shared<TokenSet>(std::move(shards), token_bytes, options);
}

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
  bool needs_fetch() const override { return set_->needs_fetch(); }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override { set_->fetch(key, raw); }
  std::string describe(i64 index) const override { return set_->describe(index); }
  bool cheap() const override { return set_->cheap() && time_ <= 1024; }
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

}  // namespace

std::shared_ptr<const Dataset> open_tokens(const std::vector<std::string>& files,
                                           const TokenOptions& options) {
  return open_stream(files, 2, options);
}

std::shared_ptr<const Dataset> open_text(const std::string& file, const TokenOptions& options) {
  return open_stream({file}, 1, options);
}

std::shared_ptr<const Dataset> masked(std::shared_ptr<const Dataset> tokens,
                                      const Masking& masking) {
  if (masking.mask_token < 0 || masking.mask_token >= masking.vocabulary) {
    throw ConfigError(format("data.mask_token: {}; expected 0 to {}", masking.mask_token,
                             masking.vocabulary - 1));
  }
  if (!(masking.probability >= 0 && masking.probability <= 1)) {
    throw ConfigError(format("data.mask_probability: {}; expected 0 to 1", masking.probability));
  }
  const auto fields = tokens->fields();
  check(fields.size() == 2 && fields[0].dtype == DType::i32 && fields[0].shape.rank() == 1 &&
            fields[1].dtype == DType::i32,
        "masked: expected a set of token sequences");
  return std::make_shared<Masked>(std::move(tokens), masking);
}

}  // namespace penstock::data
