// Training steps of any batch on a virtual clock: a sum of operators, each limited by memory or by
// arithmetic, over a launch floor, with tiles, a memory wall, noise, outliers, cold steps and a
// clock that drifts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "framework/tuner/probe.h"
#include "tests/tuner_sim/random.h"

namespace penstock::tuner_sim {

struct BatchOperator {
  double fixed_bytes = 0;          // weights, optimizer state
  double bytes = 0;                // per sample
  double flops = 0;                // per sample
  std::int64_t tile = 1;           // arithmetic is done for whole tiles of samples
  double memory_efficiency = 0.9;  // of the achievable bandwidth
  double compute_efficiency = 0.6;
};

struct BatchMachine {
  std::string name;
  double bandwidth = 3e12;
  double compute = 4e14;
  std::vector<BatchOperator> operators;
  double launch_seconds = 0;    // the host needs this long to launch a step
  double overhead_seconds = 0;  // fixed, of the step itself
  double superlinear = 0;       // seconds per sample^2
  std::int64_t cliff = 0;       // beyond this batch ...
  double cliff_factor = 1;      // ... every sample costs so much more
  double memory_fixed = 1e9;    // bytes
  double memory_per_sample = 1e6;
  double memory_free = 80e9;
  std::int64_t dataset = 1 << 20;
  double noise = 0.01;       // sigma of the logarithm of a step
  double outliers = 0.02;    // share of steps that take 1.6 times as long
  double drift = 0;          // the clock falls by this share over 20 s of work
  double clock_jumps = 0;    // share of windows in which the clock moves by 4 %
  double traffic_ratio = 1;  // bytes that move / bytes that the ledger counts
  bool has_meter = true;

  double step_seconds(std::int64_t batch) const;  // the truth, without noise
  double rate(std::int64_t batch) const { return double(batch) / step_seconds(batch); }
  double memory(std::int64_t batch) const {
    return memory_fixed + memory_per_sample * double(batch);
  }
  std::int64_t largest_fitting() const;
  double bytes(std::int64_t batch) const;  // as the ledger counts them
  double flops(std::int64_t batch) const;
  double bound_seconds(std::int64_t batch) const;
  double bound_memory_seconds(std::int64_t batch) const;
};

// A machine drawn from `seed`; the kinds are those of batch_kinds(). A step at the knee takes 0.5
// to 250 ms times `pace`.
const std::vector<std::string>& batch_kinds();
BatchMachine random_batch_machine(std::uint64_t seed, std::size_t kind, double pace = 1);
BatchMachine random_batch_machine(std::uint64_t seed);  // the kinds take turns

// Best throughput over the batches that may be used, and the smallest batch that gives 95 % of it.
struct BatchOracle {
  double rate = 0;
  std::int64_t best = 0;
  std::int64_t knee = 0;
};
BatchOracle batch_oracle(const BatchMachine& machine, std::int64_t first, std::int64_t cap);

// A machine in use: what running steps takes, and what meters say.
class BatchSimulation {
 public:
  BatchSimulation(const BatchMachine& machine, std::uint64_t seed)
      : machine_(machine), random_(seed) {}

  // At least `steps` steps and `min_seconds`.
  tuner::ProbeObservation run(std::int64_t batch, int steps, double min_seconds);
  // Batches above this run out of memory from now on; counts as a failure when one does.
  void set_wall(std::int64_t largest) { wall_ = largest; }
  double now() const { return now_; }
  int steps() const { return steps_; }
  int failures() const { return failures_; }
  double largest_memory() const { return largest_memory_; }

 private:
  BatchMachine machine_;
  Random random_;
  double now_ = 0;
  int steps_ = 0;
  int failures_ = 0;
  double largest_memory_ = 0;
  std::int64_t last_batch_ = 0;
  std::int64_t wall_ = std::int64_t{1} << 60;
  std::map<std::int64_t, bool> seen_;
  int cold_ = 0;
  bool first_visit_ = false;
};

tuner::ProbeOptions probe_options(const BatchMachine& machine);
// Drives a probe to its end.
tuner::ProbeResult run_probe(tuner::Probe& probe, BatchSimulation& simulation);

// A way to choose a batch.
struct BatchChoice {
  std::int64_t batch = 0;
  int steps = 0;
  double seconds = 0;
  int failures = 0;  // failed allocations
  int batches = 0;   // different batches measured
};
struct NamedChooser {
  std::string name;
  std::function<BatchChoice(const BatchMachine& machine, std::uint64_t seed)> choose;
};
// Ours first, then baselines by their published rules (batch_baselines.cpp).
std::vector<NamedChooser> batch_choosers();

}  // namespace penstock::tuner_sim
