// Learning rates as pure functions of the sample position, so that they do not depend on the batch.
#pragma once

#include <string>
#include <vector>

#include "framework/core/check.h"

namespace penstock::optim {

struct Schedule {
  enum class Kind : std::uint8_t { kConstant, kCosine, kLinear, kStep, kWsd };
  Kind kind = Kind::kConstant;
  double base = 0.1;            // after the warm-up
  double final = 0;             // cosine, linear, WSD: at the end
  i64 warmup = 0;               // samples of a linear rise from base / warm-up steps
  i64 total = 1;                // samples of the whole run
  i64 decay = 0;                // WSD: samples of the linear fall at the end
  double factor = 0.1;          // step: applied at each milestone
  std::vector<i64> milestones;  // step: sample positions
};

// The learning rate of the step that begins at `position` and takes `batch` samples. Warm-up counts
// the step's own samples, so the first step does not stand still.
double learning_rate(const Schedule& schedule, i64 position, i64 batch = 0);

}  // namespace penstock::optim
