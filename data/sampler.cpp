#include "data/sampler.h"

#include <bit>

#include "framework/core/check.h"
#include "framework/core/random.h"

namespace penstock::data {

EpochOrder::EpochOrder(std::uint64_t seed, i64 epoch, i64 size, bool shuffle)
    : size_(size), epoch_(epoch), shuffle_(shuffle && size > 1) {
  check(size > 0, "sampler: {} samples, at least 1 is needed", size);
  if (!shuffle_) {
    return;
  }
  const int bits = int(std::bit_width(std::uint64_t(size - 1)));
  mask_ = bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  shift_ = bits / 2 > 0 ? bits / 2 : 1;
  for (std::size_t r = 0; r < kRounds; ++r) {
    const random::Four f = random::draw(seed, random::Stream::kShuffle, 0, std::uint64_t(epoch), r);
    add_[r] = (std::uint64_t(f.x) << 32) | f.y;
    multiply_[r] = (std::uint64_t(f.z) << 32) | f.w | 1;  // odd: invertible modulo a power of two
  }
}

// Adding, multiplying by an odd number and xor-shifting are bijections of [0, 2^bits).
std::uint64_t EpochOrder::permute(std::uint64_t x) const {
  for (std::size_t r = 0; r < kRounds; ++r) {
    x = ((x + add_[r]) * multiply_[r]) & mask_;
    x ^= x >> shift_;
  }
  return x;
}

i64 EpochOrder::at(i64 k) const {
  if (!shuffle_) {
    return k;
  }
  // Walking along the cycle until it is below `size` again keeps it a bijection of [0, size).
  auto x = std::uint64_t(k);
  do {
    x = permute(x);
  } while (x >= std::uint64_t(size_));
  return i64(x);
}

}  // namespace penstock::data
