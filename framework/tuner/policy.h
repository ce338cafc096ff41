// From the knee to what the run changes: micro-batch, accumulation, learning rate, averages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/core/check.h"
#include "framework/tuner/decisions.h"

namespace penstock::tuner {

enum class BatchPolicy {
  kThroughput,  // the batch becomes the knee, within limits; the learning rate follows
  kHold,        // the effective batch stays; only the micro-batch moves
};
enum class LearningRateRule {
  kLinear,      // SGD: factor kappa = new batch / configured batch
  kSquareRoot,  // Adam(W): factor sqrt(kappa), betas to the power kappa
  kNone,
};
const char* name_of(BatchPolicy policy);
const char* name_of(LearningRateRule rule);

struct PolicyOptions {
  BatchPolicy policy = BatchPolicy::kThroughput;
  LearningRateRule rule = LearningRateRule::kLinear;
  i64 knee = 0;
  i64 configured_batch = 0;       // samples per optimizer step, accumulation included
  i64 current_batch = 0;          // in use now; 0: the configured one
  i64 largest_fitting = 0;        // 0: unknown
  i64 dataset_size = 0;           // 0: unbounded
  i64 remaining_samples = 0;      // of the run; 0: unknown
  i64 total_samples = 0;          // of the run; 0: unknown
  i64 warmup_samples = 0;         // of the configured schedule
  bool before_first_step = true;  // chosen before step 0
  double max_scale = 16;          // times the configured batch
  i64 min_steps = 1000;           // optimizer steps that must remain
  std::optional<i64> auto_max;    // auto_batch.max
  bool batch_norm = false;
  double bn_momentum = 0.1;
};

struct PolicyDecision {
  i64 micro_batch = 0;
  i64 accumulate = 1;               // micro-batches per optimizer step
  i64 effective_batch = 0;          // samples per optimizer step
  std::vector<i64> micro_batches;   // their sizes; unequal ones are weighted by their count
  double kappa = 1;                 // effective_batch / configured_batch
  double learning_rate_factor = 1;  // of the configured rate, not of the present one
  double beta_power = 1;            // beta_i becomes beta_i ^ beta_power
  double bn_momentum = 0.1;         // for the micro-batch
  i64 ramp_samples = 0;             // over which the factor grows linearly from the present one
  std::vector<std::string> limits;  // "auto_batch.max_scale", ...: what kept it from the knee
  std::vector<std::string> warnings;
  std::string reason;  // one sentence with both values of what changed
};

// Throws ConfigError when the options cannot be met, such as a knee or batch below 1.
PolicyDecision decide_batch(const PolicyOptions& options);
// "policy.decision" with all inputs and outputs, for decisions.jsonl.
Record to_record(const PolicyOptions& options, const PolicyDecision& decision);

}  // namespace penstock::tuner
