// Element types, and the two 16-bit float structs used at the edge of kernels.
#pragma once

#include <cstdint>
#include <string>

#include "framework/core/check.h"
#include "framework/core/target.h"

namespace penstock {

struct bf16 {
  std::uint16_t bits;
  bf16() = default;
  PENSTOCK_HD explicit bf16(float x) : bits(bits::to_bf16(x)) {}
  PENSTOCK_HD explicit operator float() const { return bits::from_bf16(bits); }
};

struct f16 {
  std::uint16_t bits;
  f16() = default;
  PENSTOCK_HD explicit f16(float x) : bits(bits::to_f16(x)) {}
  PENSTOCK_HD explicit operator float() const { return bits::from_f16(bits); }
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, u8, boolean };

// Bytes per element.
constexpr i64 size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::u8:
    case DType::boolean: return 1;
  }
  return 0;
}

// "f32", "bf16", ..., "bool".
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
  }
  return "?";
}
inline std::string to_string(DType dtype) {
  return name_of(dtype);
}

constexpr bool is_float(DType d) {
  return d == DType::f64 || d == DType::f32 || d == DType::f16 || d == DType::bf16;
}
// f16 and bf16.
constexpr bool is_half(DType d) {
  return d == DType::f16 || d == DType::bf16;
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

// The type that kernels compute in: double for f64 (CPU only), float for every other float.
template <class T>
using compute_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls f.template operator()<T>() with the C++ type of a float dtype; throws naming `op` for
// every other dtype.
template <class F>
decltype(auto) visit_float(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    default:
      fail(format("{}: dtype {} is not supported; expected f64, f32, f16 or bf16", op, dtype));
  }
}

// The same for every dtype.
template <class F>
decltype(auto) visit_any(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::i32: return f.template operator()<std::int32_t>();
    case DType::u8: return f.template operator()<std::uint8_t>();
    case DType::boolean: return f.template operator()<bool>();
  }
  fail("dtype: not a known element type");
}

// The same for the integer types that can index (i64, i32, u8).
template <class F>
decltype(auto) visit_index(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::i32: return f.template operator()<std::int32_t>();
    case DType::u8: return f.template operator()<std::uint8_t>();
    default:
      fail(format("{}: index dtype {} is not supported; expected i64, i32 or u8", op, dtype));
  }
}

}  // namespace penstock
