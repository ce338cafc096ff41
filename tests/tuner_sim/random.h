// Random numbers of the simulator: splitmix64, so that a machine is its seed on every platform.
#pragma once

#include <cmath>
#include <cstdint>

namespace penstock::tuner_sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x1234567ULL) {}

  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // In [0, 1).
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Logarithm uniform: each octave between `low` and `high` is equally likely.
  double log_uniform(double low, double high) {
    return std::exp(uniform(std::log(low), std::log(high)));
  }
  // In [low, high].
  int integer(int low, int high) { return low + int(uniform() * double(high - low + 1)); }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  // Mean 1; `spread` is the standard deviation of the logarithm.
  double lognormal(double spread) {
    return spread <= 0 ? 1.0 : std::exp(spread * normal() - 0.5 * spread * spread);
  }

 private:
  std::uint64_t state_;
};

// The spread of a lognormal whose coefficient of variation is `cv`.
inline double spread_of_cv(double cv) {
  return std::sqrt(std::log(1 + cv * cv));
}

}  // namespace penstock::tuner_sim
