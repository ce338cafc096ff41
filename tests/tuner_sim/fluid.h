// A loader and its step as rates, without events: one interval costs a microsecond, so that ten
// thousand machines can be tried. loader.h is the same world sample by sample.
#pragma once

#include <algorithm>
#include <cmath>

#include "framework/tuner/online.h"
#include "tests/tuner_sim/random.h"

namespace penstock::tuner_sim {

struct FluidMachine {
  double step_fixed = 0.016;  // seconds for a batch: fixed + per_sample * batch
  double step_per_sample = 0.0005;
  double work_seconds = 0.002;
  double contention = 0;  // universal scalability law over workers
  double coherence = 0;
  int cores = 16;
  double fetch_seconds = 0;
  int fetch_parallel = 64;
  double jitter = 0;  // share of throughput lost at depth 1; falls with depth
  double noise = 0;   // of the rate, between intervals
  std::int64_t ring_slots = 1 << 14;

  double step_seconds(double batch) const { return step_fixed + step_per_sample * batch; }
  double service(int workers) const {
    const double more = std::max(0, workers - 1);
    const double crowd = std::max(1.0, double(workers) / cores);
    return work_seconds * crowd * (1 + contention * more + coherence * more * workers);
  }
  // Samples per second without noise.
  double rate(const tuner::Settings& at) const {
    const double demand = double(at.batch) / step_seconds(double(at.batch));
    if (at.workers == 0) {
      return 1 / (1 / demand + work_seconds + fetch_seconds);
    }
    double supply = at.workers / service(at.workers);
    if (fetch_seconds > 0) {
      supply = std::min(supply, std::min(at.io, fetch_parallel) / fetch_seconds);
    }
    const double loss = jitter / at.depth * std::clamp(2 - supply / demand, 0.0, 1.0);
    return std::min(supply, demand) * (1 - loss);
  }
  tuner::Interval run(const tuner::Settings& at, Random& random, std::int64_t steps = 30) const {
    tuner::Interval interval;
    const double step = step_seconds(double(at.batch));
    const double measured = rate(at) * random.lognormal(noise);
    interval.steps = steps;
    interval.samples = steps * at.batch;
    interval.seconds = double(interval.samples) / measured;
    interval.step_seconds = step;
    // A slow interval is a slow step where nobody waits, and a longer wait where somebody does.
    const double waits = interval.seconds - double(steps) * step;
    if (rate(at) * step / double(at.batch) > 0.999) {
      interval.step_seconds = interval.seconds / double(steps);
    } else {
      interval.stall_seconds = std::max(0.0, waits);
    }
    interval.service_seconds = at.workers == 0 ? work_seconds : service(at.workers);
    interval.fetch_seconds =
        fetch_seconds > 0 ? fetch_seconds * std::max(1.0, double(at.io) / fetch_parallel) : 0;
    interval.run_delay_share = at.workers > cores ? 1 - double(cores) / at.workers : 0.0;
    const bool plenty = interval.stall_seconds < 0.001 * interval.seconds;
    interval.queue_high = plenty || jitter > 0 ? at.depth : 0.5;
    interval.queue_low = plenty && jitter <= 0 ? std::max(0.0, double(at.depth) - 1) : 0.0;
    return interval;
  }
  // The most that any workers, depth and reads give at this batch, and the fewest workers within
  // `tolerance` of it.
  tuner::Settings best(std::int64_t batch, int max_workers, double tolerance = 0) const {
    tuner::Settings at{.batch = batch,
                       .workers = 0,
                       .depth = int(std::clamp<std::int64_t>(ring_slots / batch - 1, 1, 64)),
                       .io = fetch_parallel};
    double most = 0;
    for (int workers = 0; workers <= max_workers; ++workers) {
      at.workers = workers;
      most = std::max(most, rate(at));
    }
    for (int workers = 0; workers <= max_workers; ++workers) {
      at.workers = workers;
      if (rate(at) >= (1 - tolerance) * most) {
        return at;
      }
    }
    return at;
  }
};

inline FluidMachine random_fluid_machine(std::uint64_t seed) {
  Random draw(seed);
  FluidMachine machine;
  constexpr int kCores[] = {2, 4, 8, 16, 32, 64};
  machine.cores = kCores[draw.integer(0, 5)];
  const double step = draw.log_uniform(0.005, 0.4);
  const double fixed = draw.uniform(0.1, 0.9);
  machine.step_fixed = step * fixed;
  machine.step_per_sample = step * (1 - fixed) / 32;
  machine.work_seconds = draw.log_uniform(0.02, 1.6 * machine.cores) * step / 32;
  if (draw.chance(0.3)) {
    machine.contention = draw.uniform(0, 0.05);
    machine.coherence = draw.log_uniform(0.0005, 0.02);
  }
  if (draw.chance(0.25)) {
    machine.fetch_seconds = draw.log_uniform(0.1, 32) * step / 32;
    machine.fetch_parallel = draw.integer(2, 48);
  }
  if (draw.chance(0.3)) {
    machine.jitter = draw.uniform(0.02, 0.3);
  }
  if (draw.chance(0.2)) {
    machine.ring_slots = 32 * draw.integer(2, 8);
  }
  return machine;
}

inline tuner::OnlineOptions online_options(const FluidMachine& machine, std::int64_t batch = 32) {
  tuner::OnlineOptions options;
  options.start = {.batch = batch, .workers = 2, .depth = 2, .io = 1};
  options.max_workers = machine.cores;
  options.loader_cores = machine.cores;
  options.ring_slots = machine.ring_slots;
  return options;
}

}  // namespace penstock::tuner_sim
