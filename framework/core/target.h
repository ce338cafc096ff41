// The one header that knows which compiler pass is running: host, or device code under nvcc.
// No class layout depends on it (a struct is the same size in every pass).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define PENSTOCK_HD __host__ __device__ __forceinline__
#else
#define PENSTOCK_HD __attribute__((always_inline)) inline
#endif

namespace penstock {

using i64 = std::int64_t;

namespace bits {

// Reinterpretations that are legal in constant-free host and device code alike.
PENSTOCK_HD std::uint32_t of_float(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
PENSTOCK_HD float to_float(std::uint32_t u) {
  return __builtin_bit_cast(float, u);
}
PENSTOCK_HD std::uint64_t of_double(double x) {
  return __builtin_bit_cast(std::uint64_t, x);
}
PENSTOCK_HD double to_double(std::uint64_t u) {
  return __builtin_bit_cast(double, u);
}

// bfloat16: the upper half of an IEEE float, rounded to nearest even; a NaN stays a (quiet) NaN.
PENSTOCK_HD float from_bf16(std::uint16_t h) {
  return to_float(std::uint32_t(h) << 16);
}
PENSTOCK_HD std::uint16_t to_bf16(float x) {
  const std::uint32_t u = of_float(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (u >> 16) | 0x40u;
  return std::uint16_t((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// IEEE half precision with subnormals, infinities and NaN; round to nearest even, overflow to
// infinity. Branch-free on the host so that loops over it vectorise; one instruction on a GPU.
PENSTOCK_HD float from_f16(std::uint16_t h) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h));
  return y;
#else
  const std::uint32_t magnitude = std::uint32_t(h & 0x7fffu) << 13;
  // 2^112 moves the exponent bias from 15 to 127 and normalises subnormals on the way.
  const std::uint32_t finite = of_float(to_float(magnitude) * to_float(0x77800000u));
  const std::uint32_t special = magnitude | 0x7f800000u;
  const std::uint32_t y = (h & 0x7c00u) == 0x7c00u ? special : finite;
  return to_float(y | (std::uint32_t(h & 0x8000u) << 16));
#endif
}
PENSTOCK_HD std::uint16_t to_f16(float x) {
#ifdef __CUDA_ARCH__
  std::uint16_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
#else
  const std::uint32_t u = of_float(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t a = u & 0x7fffffffu;
  // Subnormal results: adding 0.5 puts the half's last bit at the float's last bit, so the float
  // adder does the rounding.
  const std::uint32_t small = of_float(to_float(a) + 0.5f) - 0x3f000000u;
  const std::uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const std::uint32_t finite = a < 0x38800000u ? small : normal;
  const std::uint32_t bounded = finite > 0x7c00u || a >= 0x47800000u ? 0x7c00u : finite;
  const std::uint32_t nan = 0x7e00u;
  return std::uint16_t((a > 0x7f800000u ? nan : bounded) | sign);
#endif
}

}  // namespace bits
}  // namespace penstock
