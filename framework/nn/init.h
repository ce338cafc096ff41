// How a parameter starts: drawn on the host from (seed, parameter name), the same on every device.
#pragma once

#include <cstdint>
#include <string>

#include "framework/core/tensor.h"

namespace penstock::nn {

struct Init {
  enum class Kind : std::uint8_t { kZeros, kOnes, kNormal, kUniform };
  Kind kind = Kind::kZeros;
  float scale = 0;  // standard deviation, or half the width of the interval around 0

  static Init zeros() { return {}; }
  static Init ones() { return {Kind::kOnes, 1}; }
  static Init normal(float deviation) { return {Kind::kNormal, deviation}; }
  static Init uniform(float bound) { return {Kind::kUniform, bound}; }
  // He et al. 2015 for ReLU networks: normal with variance 2 / fan.
  static Init kaiming_normal(i64 fan);
  // What linear and convolution layers of PyTorch start with: uniform in +-1/sqrt(fan_in).
  static Init fan_in_uniform(i64 fan_in);
};

// Fills the host array; the same (seed, name) gives the same values whatever else exists.
void initialise(float* values, i64 count, const Init& init, std::uint64_t seed,
                const std::string& name);

}  // namespace penstock::nn
