// Ways to choose a batch: ours, and other people's published rules in the same simulator.
#include <algorithm>
#include <cmath>

#include "tests/tuner_sim/batch.h"

namespace penstock::tuner_sim {
namespace {

BatchChoice ours(const BatchMachine& machine, std::uint64_t seed, bool bandwidth) {
  tuner::ProbeOptions options = probe_options(machine);
  options.use_bandwidth = bandwidth;
  if (!bandwidth) {
    options.dram_meter = false;
  }
  tuner::Probe probe(options);
  BatchSimulation simulation(machine, seed);
  const tuner::ProbeResult result = run_probe(probe, simulation);
  return {.batch = result.knee,
          .steps = simulation.steps(),
          .seconds = simulation.now(),
          .failures = simulation.failures(),
          .batches = int(result.points.size())};
}

BatchChoice finished(const BatchSimulation& simulation, std::int64_t batch, int batches) {
  return {.batch = batch,
          .steps = simulation.steps(),
          .seconds = simulation.now(),
          .failures = simulation.failures(),
          .batches = batches};
}

BatchChoice fixed(const BatchMachine& machine, std::uint64_t seed, std::int64_t batch) {
  BatchSimulation simulation(machine, seed);
  return finished(simulation, batch, 0);
}

bool fits(BatchSimulation& simulation, std::int64_t batch) {
  return !simulation.run(batch, 3, 0).failed_memory;
}

// Doubles from 2 until memory fails, and takes the last that passed; at most 25 trials.
BatchChoice largest_by_doubling(const BatchMachine& machine, std::uint64_t seed, bool bisect) {
  BatchSimulation simulation(machine, seed);
  std::int64_t good = 1;
  std::int64_t bad = 0;
  int tried = 0;
  for (std::int64_t batch = 2; batch <= machine.dataset && tried < 25; batch *= 2) {
    ++tried;
    if (!fits(simulation, batch)) {
      bad = batch;
      break;
    }
    good = batch;
  }
  if (bisect && bad > 0) {
    while (bad - good > 1 && tried < 25) {
      const std::int64_t middle = (good + bad) / 2;
      ++tried;
      (fits(simulation, middle) ? good : bad) = middle;
    }
    good = std::max<std::int64_t>(1, std::int64_t(0.95 * double(good)));
  }
  return finished(simulation, good, tried);
}

// One step at 1, 2, 4, 8, 16; a line through the memory; 60 % of what is free.
BatchChoice memory_share(const BatchMachine& machine, std::uint64_t seed) {
  BatchSimulation simulation(machine, seed);
  std::vector<std::int64_t> passed;
  for (std::int64_t batch = 1; batch <= 16; batch *= 2) {
    if (simulation.run(batch, 1, 0).failed_memory) {
      break;
    }
    passed.push_back(batch);
  }
  if (passed.empty()) {
    return finished(simulation, 1, 0);
  }
  const double slope = machine.memory_per_sample;
  const double batch = (0.6 * machine.memory_free - machine.memory_fixed) / slope;
  return finished(simulation, std::clamp<std::int64_t>(std::int64_t(batch), 1, 1 << 17),
                  int(passed.size()));
}

// Doubling from 8 while a step of 3 says that throughput rises by more than 5 %.
BatchChoice plateau(const BatchMachine& machine, std::uint64_t seed) {
  BatchSimulation simulation(machine, seed);
  std::int64_t chosen = 1;
  double before = 0;
  int tried = 0;
  for (std::int64_t batch = std::min<std::int64_t>(8, machine.largest_fitting());
       batch <= machine.dataset; batch *= 2) {
    simulation.run(batch, 2, 0);
    const tuner::ProbeObservation seen = simulation.run(batch, 3, 0);
    ++tried;
    if (seen.failed_memory) {
      break;
    }
    const double rate = 3 * double(batch) / seen.seconds;
    if (before > 0 && rate < 1.05 * before) {
      break;
    }
    chosen = batch;
    before = rate;
  }
  return finished(simulation, chosen, tried);
}

// All powers of two that fit; the point that lies furthest above the chord, batch on a line.
BatchChoice kneedle(const BatchMachine& machine, std::uint64_t seed) {
  BatchSimulation simulation(machine, seed);
  std::vector<double> x;
  std::vector<double> y;
  for (std::int64_t batch = std::min<std::int64_t>(8, machine.largest_fitting());
       batch <= machine.dataset; batch *= 2) {
    if (simulation.run(batch, 4, 0).failed_memory) {
      break;
    }
    const tuner::ProbeObservation seen = simulation.run(batch, 8, 0);
    x.push_back(double(batch));
    y.push_back(double(batch) * seen.steps / seen.seconds);
  }
  std::size_t best = 0;
  double furthest = -1;
  const auto [low, high] = std::minmax_element(y.begin(), y.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double across = (x[i] - x.front()) / std::max(1e-9, x.back() - x.front());
    const double up = (y[i] - *low) / std::max(1e-9, *high - *low);
    if (up - across > furthest) {
      furthest = up - across;
      best = i;
    }
  }
  return finished(simulation, std::int64_t(x[best]), int(x.size()));
}

}  // namespace

std::vector<NamedChooser> batch_choosers() {
  using Machine = const BatchMachine&;
  return {
      {"penstock", [](Machine m, std::uint64_t s) { return ours(m, s, true); }},
      {"penstock, no bandwidth", [](Machine m, std::uint64_t s) { return ours(m, s, false); }},
      {"fixed 32", [](Machine m, std::uint64_t s) { return fixed(m, s, 32); }},
      {"fixed 64", [](Machine m, std::uint64_t s) { return fixed(m, s, 64); }},
      {"fixed 128", [](Machine m, std::uint64_t s) { return fixed(m, s, 128); }},
      {"largest that fits, doubling",
       [](Machine m, std::uint64_t s) { return largest_by_doubling(m, s, false); }},
      {"largest that fits, bisection",
       [](Machine m, std::uint64_t s) { return largest_by_doubling(m, s, true); }},
      {"60 % of memory", memory_share},
      {"plateau 5 %", plateau},
      {"Kneedle", kneedle},
  };
}

}  // namespace penstock::tuner_sim
