// What the kernel tests share: operands from a fixed generator, and norm-wise comparison with f64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "framework/core/tensor.h"

namespace penstock::kernel_test {

// Values in [-1, 1) that every dtype of at least 8 significant bits holds exactly, so that all dtypes
// compute with the same operands: differences then come from the arithmetic alone.
inline std::vector<double> values(i64 count, std::uint64_t seed) {
  std::vector<double> out(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (double& v : out) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    v = double(int(state % 255) - 127) / 128;
  }
  return out;
}

inline Tensor tensor(const std::vector<double>& v, const Shape& shape, DType dtype,
                     Device device = kCpu) {
  const Tensor t = Tensor::empty(shape, dtype, device);
  visit_float(dtype, "test", [&]<class T>() {
    std::vector<T> converted(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) {
      if constexpr (std::is_same_v<T, double>) {
        converted[i] = v[i];
      } else {
        converted[i] = T(float(v[i]));
      }
    }
    t.load_host(converted.data());
  });
  return t;
}

inline Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed) {
  return tensor(values(shape.numel(), seed), shape, dtype);
}

// |got - expected| / |expected|, Euclidean; absolute where nothing is expected.
inline double distance(const std::vector<double>& got, const std::vector<double>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference) / (norm > 0 ? std::sqrt(norm) : 1);
}
inline double distance(const Tensor& got, const Tensor& expected) {
  return distance(got.values<double>(), expected.values<double>());
}

// Half a unit in the last place, relative.
inline double unit(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::ldexp(1.0, -53);
    case DType::f32: return std::ldexp(1.0, -24);
    case DType::f16: return std::ldexp(1.0, -11);
    case DType::bf16: return std::ldexp(1.0, -8);
    default: return 0;
  }
}

// What a sum of `terms` products may be off by: rounding of the result, and f32 (f64 for f64)
// accumulation in any order, whose error grows like the square root of the terms.
inline double sum_bound(DType out, i64 terms) {
  const double accumulate = unit(out == DType::f64 ? DType::f64 : DType::f32);
  return unit(out) + 2 * accumulate * std::sqrt(double(std::max<i64>(terms, 1)));
}

}  // namespace penstock::kernel_test
