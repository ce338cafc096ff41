// Validation: the whole set, in order, without gradients.
#pragma once

#include <functional>
#include <optional>

#include "trainers/setup.h"

namespace penstock::trainers {

struct Evaluation {
  double loss = 0;                // mean over the targets
  std::optional<double> accuracy;  // of classifiers and token models: right predictions over targets
  i64 samples = 0;
  double seconds = 0;
};

struct EvaluateOptions {
  i64 batch = 64;
  i64 samples = 0;  // at most so many; 0: all
  int workers = 1;
  // Asked between batches; true breaks the evaluation off, which then returns none.
  std::function<bool()> stop;
};

// Throws ConfigError when there is no validation set.
std::optional<Evaluation> evaluate(const Setup& setup, StepRunner& runner, const EvaluateOptions& options);

}  // namespace penstock::trainers
