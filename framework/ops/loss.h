// Losses. Each returns a sum or mean over targets; conventions stand here and hold on every device.
#pragma once

#include <cstdint>

#include "framework/core/tensor.h"

namespace penstock::ops {

enum class Reduction : std::uint8_t {
  kMean,  // sum / sum of weights of the targets that count; 0 with zero gradient when none counts
  kSum,
  kNone,  // one value per row
  // For training steps: returns the plain sum, and the gradient is already multiplied by
  // StepState::seed (loss scale / number of targets of the whole step), so that unequal
  // micro-batches add up exactly. backward() takes it without a seed.
  kStep,
};

struct CrossEntropy {
  i64 ignore_index = -100;    // rows with this target have loss and gradient 0; any integer
  float label_smoothing = 0;  // e: target 1 - e + e / C, the others e / C
  Tensor class_weights;       // f32 [C]: row weight is that of its target
  Tensor second_target;       // like target: mixup's other label
  Tensor row_weight;          // f32 [N]: weight of the first target; the second has 1 - weight
  Reduction reduction = Reduction::kMean;
};

struct LossResult {
  Tensor loss;     // f32 [] (f64 for f64 logits), or [N] for kNone
  Tensor correct;  // i64 []: rows whose largest logit (the first of equals) is the target
};

// Softmax cross-entropy of logits [N, C] (any float; computed in f32) with target [N] (i64, i32 or
// u8). A target outside [0, C) that is not ignore_index is an error on the CPU and gives a NaN loss
// on CUDA, where data sets have been checked before. When `logits` is the last owner of its memory
// (pass it with std::move), the gradient is written over it.
LossResult cross_entropy(Tensor logits, const Tensor& target, const CrossEntropy& options = {});

// (prediction - target)^2; equal shapes are required, nothing broadcasts. f32 result (f64 in f64).
Tensor mse(const Tensor& prediction, const Tensor& target, Reduction reduction = Reduction::kMean);
// -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)), stable for any x; no gradient for the target.
Tensor bce_with_logits(const Tensor& logits, const Tensor& target,
                       Reduction reduction = Reduction::kMean);

}  // namespace penstock::ops
