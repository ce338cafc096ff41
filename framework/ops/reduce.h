// Reductions over axes; an empty list of axes means all of them. `keep` leaves reduced axes as 1.
#pragma once

#include <vector>

#include "framework/core/tensor.h"

namespace penstock::ops {

// Floats keep their dtype and add up in f32 (f64 in f64); u8, i32, i64 and bool give i64. The sum of
// nothing is 0.
Tensor sum(const Tensor& x, const std::vector<int>& axes = {}, bool keep = false);
// Floats only; the mean of nothing is NaN.
Tensor mean(const Tensor& x, const std::vector<int>& axes = {}, bool keep = false);
// Largest element along one axis; the gradient goes to the first of equals. A NaN among the elements
// wins. An axis without elements is an error.
Tensor max(const Tensor& x, int axis, bool keep = false);
// Where it stands (i64, the first of equals); no gradient.
Tensor argmax(const Tensor& x, int axis, bool keep = false);

}  // namespace penstock::ops
