// Which sample stands at which absolute position: a pure function of (seed, epoch, size), so that
// no worker count, batch or resume can change it, and nothing is stored.
#pragma once

#include <array>
#include <cstdint>

#include "framework/core/target.h"

namespace penstock::data {

// The order of one epoch: a keyed bijection of [0, size), O(1) a sample.
class EpochOrder {
 public:
  EpochOrder() = default;
  EpochOrder(std::uint64_t seed, i64 epoch, i64 size, bool shuffle);
  // The index at place `k` of the epoch; k in [0, size).
  i64 at(i64 k) const;
  i64 epoch() const { return epoch_; }

 private:
  static constexpr std::size_t kRounds = 6;
  std::uint64_t permute(std::uint64_t x) const;

  std::array<std::uint64_t, kRounds> add_{}, multiply_{};
  std::uint64_t mask_ = 0;
  int shift_ = 1;
  i64 size_ = 0;
  i64 epoch_ = -1;
  bool shuffle_ = false;
};

// Positions of a run: position p is place p mod size of epoch p / size, and belongs to rank
// p mod world; a rank's n-th sample stands at position n world + rank.
struct Sampler {
  std::uint64_t seed = 0;
  i64 size = 0;
  int rank = 0;
  int world = 1;
  bool shuffle = true;

  i64 position_of(i64 n) const { return n * world + rank; }
  i64 epoch_of(i64 position) const { return position / size; }
  EpochOrder order(i64 epoch) const { return {seed, epoch, size, shuffle}; }
  // The rank's first n whose position is at or behind `position`.
  i64 first_at(i64 position) const {
    return position <= rank ? 0 : (position - rank + world - 1) / world;
  }
};

}  // namespace penstock::data
