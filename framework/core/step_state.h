// What changes from step to step, in one struct in device memory: a captured step reads it there, so
// the same graph serves every step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/core/tensor.h"

namespace penstock {

// Written by the host before each micro-batch: one entry of a pinned ring, copied on the compute
// stream ahead of the launch that reads it.
struct StepInputs {
  std::int64_t position = 0;     // absolute position of the micro-batch's first sample
  std::uint64_t seed = 0;        // of the run: dropout is drawn from it
  float inverse_targets = 1;     // 1 / number of targets of the whole step: the loss denominator
  float learning_rate = 0;
  float momentum = 0;            // SGD
  float beta1 = 0.9F;            // Adam
  float beta2 = 0.999F;
  float norm_momentum = 0.1F;    // batch norm: weight of the new statistics
  std::uint32_t stride = 1;      // positions from sample to sample: the number of ranks
  std::uint32_t reserved[5] = {};
};
static_assert(sizeof(StepInputs) == 64);

// The rest is written by kernels only, and read by checkpoints, snapshots and the log ring.
struct alignas(128) StepState {
  StepInputs in;
  float seed = 1;              // gradient of the loss sum: loss_scale * inverse_targets
  float loss_scale = 1;
  std::int32_t good_steps = 0;  // since the scale last changed
  std::int32_t found_inf = 0;   // this step: some gradient is not finite
  std::int64_t applied = 0;     // optimizer steps that changed the weights: Adam's t
  std::int64_t skipped = 0;     // steps that found_inf held back
  float beta1_power = 1;        // product of beta1 over the applied steps
  float beta2_power = 1;
  float grad_norm = 0;          // of this step's unscaled gradient, before clipping
  float grad_factor = 1;        // what the optimizer multiplies gradients with: unscale and clip
  float loss_sum = 0;           // over the micro-batches of this step, unscaled
  std::int32_t correct = 0;     // right predictions over the micro-batches of this step
};
static_assert(sizeof(StepState) % 128 == 0);

// The state that ops on `device` read: the innermost StepStateScope's, else a default one of the
// process. A u8 tensor of sizeof(StepState) bytes.
Tensor current_step_state(Device device);
// A new state with default values, persistent.
Tensor make_step_state(Device device);
// Its address; null on meta.
inline StepState* step_state_pointer(const Tensor& state) {
  return static_cast<StepState*>(state.raw());
}
// One f32 field as a tensor of shape [].
Tensor step_state_field(const Tensor& state, float StepState::* field);

class StepStateScope {
 public:
  explicit StepStateScope(const Tensor& state);
  ~StepStateScope();
  StepStateScope(const StepStateScope&) = delete;
  StepStateScope& operator=(const StepStateScope&) = delete;

 private:
  Tensor before_;
};

}  // namespace penstock
