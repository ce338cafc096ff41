// Ops that move elements. Any dtype; gradients for float dtypes.
#pragma once

#include <span>
#include <vector>

#include "framework/core/tensor.h"

namespace penstock::ops {

// The same elements under another shape: a view. One dimension may be -1.
Tensor reshape(const Tensor& x, std::initializer_list<i64> dims);
Tensor reshape(const Tensor& x, const Shape& shape);
// Axes in a new order: a copy. axes is a permutation of [0, rank).
Tensor permute(const Tensor& x, std::initializer_list<int> axes);
Tensor permute(const Tensor& x, std::span<const int> axes);
// Two axes exchanged: a copy.
Tensor transpose(const Tensor& x, int a, int b);
// x repeated to `shape` by the broadcasting rule; x itself when it has that shape.
Tensor expand(const Tensor& x, const Shape& shape);
// Along `axis`; all other dimensions equal. Empty parts add nothing.
Tensor concat(const std::vector<Tensor>& parts, int axis);
// Elements [begin, end) of `axis`, every `step`-th (step >= 1).
Tensor slice(const Tensor& x, int axis, i64 begin, i64 end, i64 step = 1);
// `before` and `after` elements of `value` added along `axis`.
Tensor pad(const Tensor& x, int axis, i64 before, i64 after, double value = 0);

// Rows of table [V, ...] for every index (i64, i32, u8): shape of ids with the row's shape appended.
// An index outside [0, V) is an error on the CPU and reads row 0 on CUDA, where data sets have been
// checked before. The gradient adds up repeated rows in f32, in the order of the indices.
Tensor embedding(const Tensor& table, const Tensor& ids);

}  // namespace penstock::ops
