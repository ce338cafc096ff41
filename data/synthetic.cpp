// Made-up data of a chosen cost.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <thread>

#include "data/formats.h"
#include "framework/core/check.h"
#include "framework/core/random.h"

namespace penstock::data {
namespace {

// Work is counted on the thread's own clock: on a busy machine a sample still costs what was asked.
double cpu_now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

class Synthetic : public Dataset {
 public:
  Synthetic(const SyntheticOptions& options, std::vector<Field> fields)
      : options_(options), fields_(std::move(fields)) {
    if (options.size < 1) {
      throw ConfigError(format("data.samples: {}; expected at least 1", options.size));
    }
    if (options.classes < 1 || options.classes > (i64{1} << 31) - 1) {
      throw ConfigError(format("data.classes: {}; expected 1 to 2^31 - 1", options.classes));
    }
    if (!(options.cpu_seconds >= 0 && options.wait_seconds >= 0 && options.jitter >= 0 &&
          options.jitter <= 1)) {
      throw ConfigError(
          format("data.cost: {} s of work, {} s of waiting, varied by {}; expected none "
                 "below 0 and at most 1 of jitter",
                 options.cpu_seconds, options.wait_seconds, options.jitter));
    }
    for (int i = 0; i < options.shape.rank(); ++i) {
      if (options.shape[i] < 1) {
        throw ConfigError(format(
            "data: synthetic samples of shape {}; expected sides of at least 1", options.shape));
      }
    }
  }
  i64 size() const override { return options_.size; }
  std::span<const Field> fields() const override { return fields_; }
  bool cheap() const override {
    return options_.cpu_seconds <= 0 && options_.wait_seconds <= 0 &&
           options_.shape.numel() <= 8192;
  }
  std::string describe(i64 index) const override { return format("synthetic sample {}", index); }

 protected:
  void pay(i64 index) const {
    double scale = 1;
    if (options_.jitter > 0) {
      random::Generator g(options_.seed, random::Stream::kSynthetic, 2, std::uint64_t(index));
      scale += options_.jitter * double(g.uniform(-1, 1));
    }
    if (options_.wait_seconds > 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.wait_seconds * scale));
    }
    if (options_.cpu_seconds > 0) {
      const double until = cpu_now() + options_.cpu_seconds * scale;
      while (cpu_now() < until) {
      }
    }
  }
  SyntheticOptions options_;
  std::vector<Field> fields_;
};

class Images final : public Synthetic {
 public:
  explicit Images(const SyntheticOptions& o)
      : Synthetic(o, {{.name = o.shape.rank() == 4 ? "volume" : "image",
                       .dtype = DType::u8,
                       .shape = o.shape},
                      {.name = "label", .dtype = DType::i64, .shape = {}}}) {}
  void load(const SampleKey& key, std::span<const std::byte> /*raw*/,
            std::span<std::byte* const> fields) const override {
    pay(key.index);
    random::Generator g(options_.seed, random::Stream::kSynthetic, 0, std::uint64_t(key.index));
    const std::int64_t label = g.below(std::uint32_t(options_.classes));
    std::byte* to = fields[0];
    const i64 n = fields_[0].shape.numel();
    // A stripe pattern that belongs to the class, under noise.
    const auto period = std::uint32_t(3 + label);
    for (i64 i = 0; i < n; i += 4) {
      const std::uint32_t word = g.next();
      for (i64 k = i; k < std::min(n, i + 4); ++k) {
        const std::uint32_t noise = (word >> (8 * (k - i))) & 0x7FU;
        to[k] = std::byte(noise + (std::uint32_t(k) % period < period / 2 ? 96U : 0U));
      }
    }
    std::memcpy(fields[1], &label, 8);
  }
};

class Tokens final : public Synthetic {
 public:
  explicit Tokens(const SyntheticOptions& o)
      : Synthetic(o, {{.name = "input", .dtype = DType::i32, .shape = o.shape},
                      {.name = "target", .dtype = DType::i32, .shape = o.shape}}) {}
  i64 targets(std::span<std::byte* const> /*fields*/) const override { return options_.shape[0]; }
  void load(const SampleKey& key, std::span<const std::byte> /*raw*/,
            std::span<std::byte* const> fields) const override {
    pay(key.index);
    random::Generator g(options_.seed, random::Stream::kSynthetic, 1, std::uint64_t(key.index));
    auto* input = reinterpret_cast<std::int32_t*>(fields[0]);
    auto* target = reinterpret_cast<std::int32_t*>(fields[1]);
    const auto v = std::uint32_t(options_.classes);
    // A walk: the next token is most often one more than the last.
    std::uint32_t token = g.below(v);
    for (i64 i = 0; i <= options_.shape[0]; ++i) {
      if (i < options_.shape[0]) {
        input[i] = std::int32_t(token);
      }
      if (i > 0) {
        target[i - 1] = std::int32_t(token);
      }
      token = g.below(8) == 0 ? g.below(v) : (token + 1) % v;
    }
  }
};

}  // namespace

std::shared_ptr<const Dataset> synthetic_images(const SyntheticOptions& options) {
  check(options.shape.rank() == 3 || options.shape.rank() == 4,
        "synthetic_images: shape {}; expected [H, W, C] or [D, H, W, C]", options.shape);
  return std::make_shared<Images>(options);
}
std::shared_ptr<const Dataset> synthetic_tokens(const SyntheticOptions& options) {
  check(options.shape.rank() == 1, "synthetic_tokens: shape {}; expected [T]", options.shape);
  return std::make_shared<Tokens>(options);
}

}  // namespace penstock::data
