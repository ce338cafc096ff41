// Tensor shapes: up to eight dimensions held in place, outermost first.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string>

#include "framework/core/check.h"

namespace penstock {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<i64> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  // Throws unless there are at most kMaxRank dimensions, none negative, and their product (and the
  // bytes of the widest dtype) fits in 63 bits.
  explicit Shape(std::span<const i64> dims);

  int rank() const { return rank_; }
  // Negative `axis` counts from the end.
  i64 operator[](int axis) const { return dims_[std::size_t(axis < 0 ? axis + rank_ : axis)]; }
  i64 numel() const { return numel_; }
  std::span<const i64> dims() const { return {dims_.data(), std::size_t(rank_)}; }
  bool operator==(const Shape& other) const { return rank_ == other.rank_ && dims_ == other.dims_; }

  // Product of the dimensions in [begin, end).
  i64 numel(int begin, int end) const;
  // Axis in [0, rank) for a possibly negative one; throws naming `op` when out of range.
  int axis(int a, const char* op) const;
  // This shape with dimension `axis` replaced.
  Shape with(int axis, i64 size) const;
  // This shape without dimension `axis`.
  Shape without(int axis) const;
  // This shape with one more dimension of `size` at `axis`.
  Shape inserted(int axis, i64 size) const;

 private:
  int rank_ = 0;
  std::array<i64, kMaxRank> dims_{};
  i64 numel_ = 1;
};

// "[64, 3, 32, 32]".
std::string to_string(const Shape& shape);

// The NumPy rule: align at the end, sizes equal or one of them 1. Throws naming `op` otherwise.
Shape broadcast(const Shape& a, const Shape& b, const char* op);

}  // namespace penstock
