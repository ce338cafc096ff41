// The memory plan: the real step, run on `meta`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/ledger.h"
#include "framework/measure/roofline.h"
#include "trainers/setup.h"

namespace penstock::trainers {

struct BatchPlan {
  i64 batch = 0;
  i64 persistent = 0;  // bytes: weights, gradients, moments, buffers, input slots
  i64 step = 0;        // bytes: the step region's high-water mark
  i64 total() const { return persistent + step; }
  std::map<MemoryClass, i64> persistent_by_class;
  ledger::Table ops;   // one optimizer step
};

// What a step with micro-batches of `batch` samples (plus the one that may join) holds and does.
// Computes nothing.
BatchPlan plan_batch(const Setup& setup, i64 batch, i64 accumulate = 1);
// The largest batch up to `most` whose plan fits into `capacity` bytes; 0 when not even one sample does.
i64 largest_fitting(const Setup& setup, i64 capacity, i64 most);
// Bytes and FLOPs of a step as functions of the batch.
measure::StepCost cost_of(const Setup& setup, i64 small = 8, i64 large = 32);

}  // namespace penstock::trainers
