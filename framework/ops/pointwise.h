// Element-wise ops. Float dtypes unless said otherwise; the result has the inputs' dtype. f16 and
// bf16 are computed in f32. Under mixed precision exp, log and pow give f32.
#pragma once

#include "framework/core/tensor.h"

namespace penstock::ops {

Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);       // log 0 = -inf, NaN below
Tensor sqrt(const Tensor& x);      // the gradient at 0 is 0, not infinite
Tensor square(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);      // the gradient at 0 is 0
Tensor gelu(const Tensor& x);      // x Phi(x), by erf
Tensor gelu_tanh(const Tensor& x); // its tanh form, as GPT-2 has it
Tensor silu(const Tensor& x);
Tensor scale(const Tensor& x, double factor);
Tensor add_scalar(const Tensor& x, double value);

// Broadcasting by the NumPy rule; mixed dtypes meet in the wider one. Gradients are summed to each
// input's shape.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
// a^b; 0^0 = 1. d/da is b a^(b-1), 0 where b is 0; d/db is a^b log a, 0 where a is 0.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // equal elements share the gradient half and half
Tensor minimum(const Tensor& a, const Tensor& b);

// Bool results, no gradient; any dtype, both the same.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
// condition (bool) ? a : b, all broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// x in another dtype, recorded.
Tensor cast(const Tensor& x, DType dtype);

struct Dropout {
  double p = 0.5;            // probability of a zero; 1 gives zeros
  std::uint32_t layer = 0;   // no two layers of a model share a number
};
// x [N, ...]: each element is 0 with probability p, else x / (1 - p), drawn from (seed, layer,
// absolute sample position, element): whatever the batch, the same sample gets the same mask. The
// backward pass draws it again.
Tensor dropout(const Tensor& x, const Dropout& options);

}  // namespace penstock::ops
