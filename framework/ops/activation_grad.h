// Derivatives of fused activations, shared by the block ops.
#pragma once

#include "framework/core/tensor.h"

namespace penstock::ops {

// dy where the ReLU's output y is positive, else 0; shapes of dy.
Tensor relu_gradient(const Tensor& dy, const Tensor& y);
// dy times the derivative of gelu (tanh form) at x.
Tensor gelu_gradient(const Tensor& dy, const Tensor& x);

}  // namespace penstock::ops
