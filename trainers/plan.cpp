#include "trainers/plan.h"

#include <algorithm>

namespace penstock::trainers {

BatchPlan plan_batch(const Setup& setup, i64 batch, i64 accumulate) {
  const Device meta = meta_of(setup.device);
  BatchPlan plan;
  plan.batch = batch;
  const i64 persistent_before = memory::stats(meta, Region::kPersistent).used;
  check(memory::stats(meta, Region::kStep).used == 0, "plan: a step is under way");
  memory::reset_high_water(meta);
  const i64 base = memory::stats(meta, Region::kPersistent).high_water;
  std::map<MemoryClass, i64> before;
  for (int c = 0; c < kMemoryClasses; ++c) {
    before[MemoryClass(c)] = memory::used(meta, MemoryClass(c));
  }
  {
    const i64 largest = batch + (setup.batch_norm ? 1 : 0);
    StepRunner runner(setup.model, step_options(setup, meta, largest));
    for (int c = 0; c < kMemoryClasses; ++c) {
      plan.persistent_by_class[MemoryClass(c)] =
          memory::used(meta, MemoryClass(c)) - before[MemoryClass(c)];
    }
    const ledger::Recorder recorder(true);
    for (i64 k = 0; k < accumulate; ++k) {
      runner.run({.count = batch, .first = k == 0});
    }
    runner.finish(batch * accumulate, 1);
    plan.ops = recorder.table();
    if (largest > batch) {
      // The single sample that joins the last batch of an epoch needs room too.
      const ledger::Recorder joined(true);
      runner.run({.count = largest});
      runner.finish(largest, 1);
    }
    plan.persistent = memory::stats(meta, Region::kPersistent).high_water - base;
    plan.step = memory::stats(meta, Region::kStep).high_water;
  }
  check(memory::stats(meta, Region::kPersistent).used == persistent_before,
        "plan: something was left behind");
  return plan;
}

i64 largest_fitting(const Setup& setup, i64 capacity, i64 most) {
  const auto fits = [&](i64 batch) { return plan_batch(setup, batch).total() <= capacity; };
  i64 good = 0;
  i64 bad = most + 1;
  for (i64 b = 1; b <= most; b *= 2) {
    if (!fits(b)) {
      bad = b;
      break;
    }
    good = b;
  }
  if (good == 0) {
    return 0;
  }
  // Within 1 % is as close as a choice of batch needs.
  while (bad - good > std::max<i64>(1, good / 100)) {
    const i64 middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

measure::StepCost cost_of(const Setup& setup, i64 small, i64 large) {
  return measure::step_cost(plan_batch(setup, small).ops, small, plan_batch(setup, large).ops, large);
}

}  // namespace penstock::trainers
