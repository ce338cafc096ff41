// Counter-based random numbers: a pure function of (seed, stream, position, element). Nothing is
// drawn from a state, so no worker, batch size, graph or resume can change what a sample gets.
#pragma once

#include <cstdint>

#include "framework/core/target.h"

namespace penstock::random {

// What a number is drawn for; two uses never share numbers.
enum class Stream : std::uint32_t {
  kInit = 1,
  kShuffle = 2,
  kAugment = 3,
  kDropout = 4,
  kMix = 5,
  kMask = 6,
  kSynthetic = 7,
};

struct Four {
  std::uint32_t x, y, z, w;
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
PENSTOCK_HD Four philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low) {
  std::uint32_t k0 = std::uint32_t(key);
  std::uint32_t k1 = std::uint32_t(key >> 32);
  Four c{std::uint32_t(counter_low), std::uint32_t(counter_low >> 32), std::uint32_t(counter_high),
         std::uint32_t(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t(0xD2511F53u) * c.x;
    const std::uint64_t p1 = std::uint64_t(0xCD9E8D57u) * c.z;
    c = {std::uint32_t(p1 >> 32) ^ c.y ^ k0, std::uint32_t(p1), std::uint32_t(p0 >> 32) ^ c.w ^ k1,
         std::uint32_t(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Four words for element block `block` of `position` (a sample, a parameter, an epoch) in `stream`
// with a sub-stream `tag` (layer, parameter index, augmentation step).
PENSTOCK_HD Four draw(std::uint64_t seed, Stream stream, std::uint32_t tag, std::uint64_t position,
                      std::uint64_t block) {
  // Stream and tag belong to the key's side: two of them never meet on one counter.
  const std::uint64_t key =
      seed ^ (std::uint64_t(stream) * 0x9E3779B97F4A7C15ull) ^ (std::uint64_t(tag) << 32);
  return philox(key, position, block);
}

// Uniform in [0, 1): 24 bits, exact in float.
PENSTOCK_HD float uniform(std::uint32_t word) {
  return float(word >> 8) * 0x1p-24f;
}
// Uniform integer in [0, n), n <= 2^32, by the multiply-shift rule (bias below n / 2^32).
PENSTOCK_HD std::uint32_t below(std::uint32_t word, std::uint32_t n) {
  return std::uint32_t((std::uint64_t(word) * n) >> 32);
}

// A seeded sequence for host code that needs several numbers in a row for one purpose, e.g. the
// augmentation of one sample: Generator(seed, Stream::kAugment, tag, sample).
class Generator {
 public:
  Generator(std::uint64_t seed, Stream stream, std::uint32_t tag, std::uint64_t position)
      : seed_(seed), stream_(stream), tag_(tag), position_(position) {}

  std::uint32_t next() {
    if (used_ == 4) {
      const Four f = draw(seed_, stream_, tag_, position_, block_++);
      words_[0] = f.x;
      words_[1] = f.y;
      words_[2] = f.z;
      words_[3] = f.w;
      used_ = 0;
    }
    return words_[used_++];
  }
  float uniform() { return random::uniform(next()); }
  // Uniform in [low, high).
  float uniform(float low, float high) { return low + (high - low) * uniform(); }
  // Uniform integer in [0, n).
  std::uint32_t below(std::uint32_t n) { return random::below(next(), n); }
  // Standard normal by Box and Muller.
  float normal();

 private:
  std::uint64_t seed_;
  Stream stream_;
  std::uint32_t tag_;
  std::uint64_t position_;
  std::uint64_t block_ = 0;
  std::uint32_t words_[4] = {};
  int used_ = 4;
};

}  // namespace penstock::random
