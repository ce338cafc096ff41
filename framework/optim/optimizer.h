// Optimizers on flat arrays. step() is four small launches whatever the model: gradient norm with a
// finiteness check, one scalar launch that decides, one update of all parameters, one of all
// buffers. Nothing is read back: hyperparameters and counters live in StepState.
#pragma once

#include <cstdint>

#include "framework/core/step_state.h"
#include "framework/nn/arena.h"

namespace penstock::optim {

enum class Kind : std::uint8_t { kSgd, kAdam, kAdamW };

struct OptimizerOptions {
  Kind kind = Kind::kSgd;
  bool nesterov = false;    // SGD: look ahead along the momentum
  float weight_decay = 0;   // SGD, Adam: added to the gradient; AdamW: decoupled
  float epsilon = 1e-8F;    // Adam: added to sqrt(v / (1 - beta2^t))
  float clip_norm = 0;      // gradients are scaled down to this 2-norm; 0: never
  bool scale_loss = false;  // fp16: the loss scale grows and backs off
  i64 growth_interval = 2000;  // good steps after which the scale doubles
  float min_scale = 1;      // the scale never falls below
};

// Arrays of moments that the optimizer keeps (ArenaOptions::moments).
int moments_of(Kind kind);

// Adds a micro-batch's loss sum (f32 or f64 []) and right predictions (i64 [], may be undefined) to
// StepState::loss_sum and correct; part of the captured step.
void add_loss(const Tensor& state, const Tensor& loss, const Tensor& correct);

class Optimizer {
 public:
  Optimizer(nn::ParameterArena& arena, const OptimizerOptions& options);

  // Sets StepState's per-step fields before the first micro-batch of a step; part of the captured
  // `first` graph. Clears found_inf, loss_sum and correct, and computes the loss seed.
  void begin_step(const Tensor& state) const;
  // Updates masters, moments, low-precision copies and buffers from the gradients, all under
  // StepState::found_inf: a bad step changes none of them. Learning rate, momentum and betas come
  // from StepState::in. SGD: v = momentum v + g; w -= lr (nesterov ? g + momentum v : v).
  // Adam: Kingma and Ba 2015; AdamW: Loshchilov and Hutter 2019.
  void step(const Tensor& state);

  const OptimizerOptions& options() const { return options_; }

 private:
  nn::ParameterArena& arena_;
  OptimizerOptions options_;
  Tensor partial_;  // [chunks] sums of squares
};

}  // namespace penstock::optim
