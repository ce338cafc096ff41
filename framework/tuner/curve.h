// Step time against batch: a robust fit of t(B) = max(c, a + b B), or a + b B + q B^2.
#pragma once

#include <vector>

#include "framework/core/check.h"

namespace penstock::tuner {

// A measured batch: seconds per step and the relative standard error of it.
struct CurvePoint {
  double batch = 0;
  double seconds = 0;
  double error = 0;
};

// t(B) = max(c, a + b B + q B^2) in seconds; all coefficients are >= 0.
struct StepFit {
  double c = 0;               // floor: launch cost of the host
  double a = 0;               // fixed cost of a step
  double b = 0;               // cost of a sample
  double q = 0;               // superlinear part; 0 unless it predicts held-out points better
  double relative_error = 0;  // root mean square over the points
  int points = 0;             // 0: no fit

  double seconds(double batch) const;
  double rate(double batch) const { return batch / seconds(batch); }  // samples per second
  double half_batch() const;  // B_half = a / b: half of T_inf is reached there; 0 when b is 0
  double limit() const;       // T_inf = 1 / b, samples per second; 0 when b is 0
  // d ln T / d ln B: the share of the step that is fixed cost, in [0, 1].
  double elasticity(double batch) const;
};

// Least relative error under a Huber loss, weighted by the errors. At least one point.
StepFit fit_step_time(const std::vector<CurvePoint>& points);

// Throughputs made non-decreasing up to their peak by pooling neighbours that contradict, and
// non-increasing after it (weights: 1 / error^2). The maximum of it is not a lucky draw.
std::vector<double> unimodal_rates(const std::vector<CurvePoint>& points);

}  // namespace penstock::tuner
