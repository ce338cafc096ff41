// Linear layers and the matrix product.
#pragma once

#include <cstdint>

#include "framework/core/tensor.h"

namespace penstock::ops {

enum class Activation : std::uint8_t { kNone, kRelu, kGelu };  // kGelu: the tanh form

// y = act(x w' + bias). x [..., in], w [out, in] as everywhere public, bias [out] or undefined.
// One block op: bias and activation ride on the product where the library can.
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias,
              Activation activation = Activation::kNone);

// Products of matrices in the last two axes: op(a) [..., m, k] with op(b) [..., k, n], where op
// exchanges the two axes when asked. Leading axes are equal, or b has none and is used for all.
struct MatMul {
  bool transpose_a = false;
  bool transpose_b = false;
};
Tensor matmul(const Tensor& a, const Tensor& b, const MatMul& options = {});

}  // namespace penstock::ops
