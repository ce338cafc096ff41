#include "framework/core/shape.h"

#include <algorithm>

namespace penstock {

Shape::Shape(std::span<const i64> dims) {
  check(dims.size() <= kMaxRank, "shape: {} dimensions, at most {} are supported", dims.size(),
        kMaxRank);
  rank_ = int(dims.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
  // A zero anywhere makes the product zero, but the others must still be sane.
  i64 product = 1;
  bool zero = false;
  for (const i64 d : dims) {
    check(d >= 0, "shape: dimension {} is negative", d);
    if (d == 0) {
      zero = true;
      continue;
    }
    check(!__builtin_mul_overflow(product, d, &product) && product <= (i64(1) << 59),
          "shape: the product of {} dimensions exceeds 2^59 elements", dims.size());
  }
  numel_ = zero ? 0 : product;
}

i64 Shape::numel(int begin, int end) const {
  i64 product = 1;
  for (int i = begin; i < end; ++i) {
    product *= dims_[std::size_t(i)];
  }
  return product;
}

int Shape::axis(int a, const char* op) const {
  check(a >= -rank_ && a < rank_, "{}: axis {} is out of range for shape {}", op, a, *this);
  return a < 0 ? a + rank_ : a;
}

Shape Shape::with(int axis, i64 size) const {
  std::array<i64, kMaxRank> dims = dims_;
  dims[std::size_t(axis < 0 ? axis + rank_ : axis)] = size;
  return Shape(std::span(dims.data(), std::size_t(rank_)));
}

Shape Shape::without(int axis) const {
  std::array<i64, kMaxRank> dims{};
  int n = 0;
  for (int i = 0; i < rank_; ++i) {
    if (i != axis) {
      dims[std::size_t(n++)] = dims_[std::size_t(i)];
    }
  }
  return Shape(std::span(dims.data(), std::size_t(n)));
}

Shape Shape::inserted(int axis, i64 size) const {
  check(rank_ < kMaxRank, "shape: {} has no room for one more dimension", *this);
  std::array<i64, kMaxRank> dims{};
  for (int i = 0; i < rank_ + 1; ++i) {
    dims[std::size_t(i)] = i == axis ? size : dims_[std::size_t(i < axis ? i : i - 1)];
  }
  return Shape(std::span(dims.data(), std::size_t(rank_ + 1)));
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.rank(); ++i) {
    out += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return out + "]";
}

Shape broadcast(const Shape& a, const Shape& b, const char* op) {
  const int rank = std::max(a.rank(), b.rank());
  std::array<i64, Shape::kMaxRank> dims{};
  for (int i = 0; i < rank; ++i) {
    const i64 da = i < a.rank() ? a[a.rank() - 1 - i] : 1;
    const i64 db = i < b.rank() ? b[b.rank() - 1 - i] : 1;
    check(da == db || da == 1 || db == 1, "{}: shapes {} and {} do not broadcast", op, a, b);
    dims[std::size_t(rank - 1 - i)] = da == 1 ? db : da;
  }
  return Shape(std::span(dims.data(), std::size_t(rank)));
}

}  // namespace penstock
