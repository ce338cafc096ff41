// Softmax over the last axis, computed in f32 (f64 in f64); under mixed precision the result is f32.
// A row whose entries are all -inf gives zeros (softmax) or -inf (log_softmax), with gradient 0.
#pragma once

#include "framework/core/tensor.h"

namespace penstock::ops {

Tensor softmax(const Tensor& x);
Tensor log_softmax(const Tensor& x);

}  // namespace penstock::ops
