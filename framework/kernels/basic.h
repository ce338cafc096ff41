// Kernels that the engine itself needs: fill, cast, accumulate, sum. No graph edges.
#pragma once

#include "framework/core/tensor.h"

namespace penstock::kernels {

// Every element of x becomes `value` (converted to x's dtype).
void fill(const Tensor& x, double value);
// to = from, converted; same element count, same device, any dtypes.
void cast_into(const Tensor& to, const Tensor& from);
// A copy of x in another dtype; x itself when it has it already.
Tensor cast(const Tensor& x, DType dtype);
// to += from, computed in f32 (f64 when either is); float dtypes, same element count.
void add_into(const Tensor& to, const Tensor& from);
// y = scale * x for a float tensor, new storage; `scale` is one f32 element on x's device.
Tensor scaled(const Tensor& x, const Tensor& scale);

// Sum over the middle of x seen as [outer, n, inner], times `scale`. Floats accumulate in f32 (f64
// in f64) and keep their dtype unless `dtype` says otherwise; integers and bool give i64. The sum of
// nothing is 0. The order of additions is a function of the shape alone.
Tensor sum_middle(const Tensor& x, i64 outer, i64 n, i64 inner, DType dtype, double scale = 1);
// to = beta * to + that sum, f32 or f64 `to` of outer * inner elements: bias gradients into a sink.
void sum_middle_into(const Tensor& to, double beta, const Tensor& x, i64 outer, i64 n, i64 inner);
// x summed over the axes that broadcasting added or widened to get from `shape` to x.shape().
Tensor sum_to_shape(const Tensor& x, const Shape& shape);

}  // namespace penstock::kernels
