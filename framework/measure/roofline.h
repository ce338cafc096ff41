// Predictions that need no device: what a step must move and compute at any batch, from the ledger
// of two planned steps, and the throughput that ceilings allow it.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "framework/core/ledger.h"
#include "framework/measure/table.h"

namespace penstock::measure {

// fixed + per_sample x batch; neither is negative.
struct Affine {
  double fixed = 0;
  double per_sample = 0;
  double at(double batch) const { return fixed + per_sample * batch; }
};

struct OpCost {
  ledger::Key key;
  std::array<Affine, kMemoryClasses> read;     // bytes
  std::array<Affine, kMemoryClasses> written;  // bytes
  Affine flops;
  Affine kernels;
  double bytes(double batch) const;
};

// One training step, by op and phase.
struct StepCost {
  std::vector<OpCost> ops;
  double bytes(double batch) const;
  double flops(double batch) const;
  double kernels(double batch) const;
  // The share of the bytes at `batch` that a larger batch would not move again: weights, gradients,
  // optimizer state.
  double fixed_bytes_share(double batch) const;
};

// Costs from the tables of two planned steps at different batches; an op that only one of them has
// counts with what it has. Error when the batches are equal or not positive.
StepCost step_cost(const ledger::Table& small, i64 small_batch, const ledger::Table& large,
                   i64 large_batch);

// The roof that a step runs under.
struct Roof {
  double bytes_per_second = 0;  // achievable
  double flops_per_second = 0;  // measured matmul ceiling of the step's precision; 0: unknown
  double kernel_seconds = 0;    // least time of one launch; 0 for the plain bound
  double bytes_scale = 1;       // measured traffic over modelled, where both are known
};

// Seconds of a step: the sum over ops of the longest of memory, arithmetic and launches.
double step_seconds(const StepCost& cost, double batch, const Roof& roof);
// Samples a second that memory and arithmetic allow (TUNING 3): batch / step_seconds without
// launches.
double bound(const StepCost& cost, double batch, const Roof& roof);

struct PredictedPoint {
  i64 batch = 0;
  double seconds = 0;
  double samples_per_second = 0;
  double share_of_best = 0;     // of the best feasible point
  double bytes_per_second = 0;  // DRAM traffic at that speed
  double flops_per_second = 0;
};

// The predicted curve and what follows from it; knees as TUNING 3 defines them.
struct Prediction {
  std::vector<PredictedPoint> points;
  double half_batch = 0;         // B_half = a / b of t = a + b B at the upper end
  i64 knee = 0;                  // smallest batch within 5 % of the best feasible throughput
  std::optional<i64> gain_knee;  // smallest batch whose doubling gains < 15 %; none below the cap
  std::optional<i64> elastic_knee;  // smallest batch with elasticity < 25 %; none below the cap
};
// Over powers of two up to `largest` (what fits), which is a point itself.
Prediction predict(const StepCost& cost, const Roof& roof, i64 largest);
// The grid that probe and prediction share: powers of two from max(1, min(8, largest)), `largest`
// rounded down to a multiple of 8 from 8 on.
std::vector<i64> batch_grid(i64 largest);

// Bytes of a step by memory class, largest first.
TextTable category_table(const StepCost& cost, i64 batch);
// Bytes, FLOPs and predicted time by op and phase, longest first; at most `rows` and the rest as
// one.
TextTable op_table(const StepCost& cost, i64 batch, const Roof& roof, std::size_t rows = 40);
TextTable prediction_table(const Prediction& prediction);

}  // namespace penstock::measure
