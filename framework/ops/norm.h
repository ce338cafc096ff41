// Normalisations. Statistics and parameter gradients are f32 (f64 in f64) whatever the dtype of x;
// parameters stay f32.
#pragma once

#include "framework/core/tensor.h"

namespace penstock::ops {

// y = (x - mean) / sqrt(var + epsilon) * gamma + beta over the last axis, var biased. gamma, beta
// [C]; beta may be undefined.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon = 1e-5);

struct ResidualNorm {
  Tensor sum;   // x + residual, in x's dtype: the residual stream goes on with it
  Tensor norm;  // layer_norm(sum)
};
// One block op: one pass forward, and one backward that adds the stream's gradient on the way.
ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma,
                                 const Tensor& beta, double epsilon = 1e-5);

// y = x / sqrt(mean(x^2) + epsilon) * gamma over the last axis.
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double epsilon = 1e-6);

struct BatchNorm {
  double epsilon = 1e-5;
  bool training = true;  // false: normalise by the running statistics
  bool relu = false;     // max(0, .) at the end
  Tensor residual;       // added before the ReLU; shape of x, or undefined
  // f32 [C]. Training reads nothing from `running` and moves `shadow` towards the batch's mean and
  // *unbiased* variance by StepState::in.norm_momentum (PyTorch's convention); the optimizer commits
  // it. Undefined: no statistics are kept.
  Tensor running_mean, running_var, shadow_mean, shadow_var;
};
// x [..., C], gamma and beta f32 [C]: over all axes but the last. Training with one value per channel
// has no variance and is an error.
Tensor batch_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta,
                  const BatchNorm& options);

}  // namespace penstock::ops
