#include "tests/tuner_sim/batch.h"

#include <algorithm>
#include <cmath>

namespace penstock::tuner_sim {
namespace {

double operator_bound(const BatchMachine& m, const BatchOperator& o, double batch) {
  return std::max((o.fixed_bytes + o.bytes * batch) / m.bandwidth, o.flops * batch / m.compute);
}

}  // namespace

double BatchMachine::step_seconds(std::int64_t batch) const {
  double sum = overhead_seconds;
  for (const BatchOperator& o : operators) {
    const double tiles = double((batch + o.tile - 1) / o.tile * o.tile);
    const double memory = traffic_ratio * (o.fixed_bytes + o.bytes * double(batch)) /
                          (bandwidth * o.memory_efficiency);
    sum += std::max(memory, o.flops * tiles / (compute * o.compute_efficiency));
  }
  sum += superlinear * double(batch) * double(batch);
  if (cliff > 0 && batch > cliff) {
    sum *= 1 + (cliff_factor - 1) * double(batch - cliff) / double(batch);
  }
  return std::max(launch_seconds, sum);
}

std::int64_t BatchMachine::largest_fitting() const {
  if (memory_free < memory_fixed) {
    return 0;
  }
  return std::int64_t((memory_free - memory_fixed) / memory_per_sample);
}

double BatchMachine::bytes(std::int64_t batch) const {
  double sum = 0;
  for (const BatchOperator& o : operators) {
    sum += o.fixed_bytes + o.bytes * double(batch);
  }
  return sum;
}

double BatchMachine::flops(std::int64_t batch) const {
  double sum = 0;
  for (const BatchOperator& o : operators) {
    sum += o.flops * double(batch);
  }
  return sum;
}

double BatchMachine::bound_seconds(std::int64_t batch) const {
  double sum = 0;
  for (const BatchOperator& o : operators) {
    sum += operator_bound(*this, o, double(batch));
  }
  return sum;
}

double BatchMachine::bound_memory_seconds(std::int64_t batch) const {
  return bytes(batch) / bandwidth;
}

const std::vector<std::string>& batch_kinds() {
  static const std::vector<std::string> kKinds = {
      "fixed traffic", "launch floor", "tiles",    "optimizer-heavy", "memory wall before the knee",
      "superlinear",   "cliff",        "streaming"};
  return kKinds;
}

BatchMachine random_batch_machine(std::uint64_t seed) {
  return random_batch_machine(seed, std::size_t(seed % batch_kinds().size()));
}

// Times are drawn first and turned into bytes and FLOPs: the half batch a / b is what matters.
BatchMachine random_batch_machine(std::uint64_t seed, std::size_t kind, double pace) {
  Random draw(seed * 7919 + 13);
  BatchMachine m;
  m.name = batch_kinds()[kind];
  m.bandwidth = draw.log_uniform(5e10, 4e12);
  m.compute = m.bandwidth * draw.log_uniform(10, 300);
  double half = draw.log_uniform(2, 150);
  if (kind == 3) {
    half = draw.log_uniform(60, 400);
  } else if (kind == 7) {
    half = draw.log_uniform(0.1, 4);
  }
  // Seconds of a sample at the limit; a step at the knee is then 20 half batches.
  const double sample = draw.log_uniform(0.0005, 0.25) * pace / (20 * half);
  const double fixed = half * sample;
  // A few layers share the work; the optimizer moves its state once a step.
  const int layers = draw.integer(1, 4);
  const double compute_part = kind == 7 ? draw.uniform(0, 0.3) : draw.uniform(0.2, 1);
  const double traffic_part = draw.uniform(0.2, 0.9);  // of the fixed time; the rest is overhead
  for (int i = 0; i < layers; ++i) {
    BatchOperator arithmetic;
    arithmetic.compute_efficiency = draw.uniform(0.35, 0.9);
    arithmetic.flops = compute_part * sample / layers * m.compute * arithmetic.compute_efficiency;
    arithmetic.fixed_bytes = 0.1 * fixed / layers * m.bandwidth;
    if (kind == 2) {
      arithmetic.tile = std::int64_t(8) << draw.integer(0, 3);
    }
    m.operators.push_back(arithmetic);
    BatchOperator streaming;
    streaming.memory_efficiency = draw.uniform(0.6, 0.98);
    streaming.bytes =
        (1 - compute_part) * sample / layers * m.bandwidth * streaming.memory_efficiency;
    m.operators.push_back(streaming);
  }
  BatchOperator optimizer;
  optimizer.memory_efficiency = draw.uniform(0.8, 0.98);
  optimizer.fixed_bytes = traffic_part * fixed * m.bandwidth * optimizer.memory_efficiency;
  m.operators.push_back(optimizer);
  m.overhead_seconds = (1 - traffic_part) * fixed;
  if (kind == 1) {
    m.launch_seconds = std::min(0.05 * pace, sample * draw.log_uniform(20, 400));
  }
  if (kind == 5) {
    m.superlinear = sample / draw.log_uniform(2000, 40000);
  }
  if (kind == 6) {
    m.cliff = std::int64_t(half * draw.log_uniform(4, 60)) + 8;
    m.cliff_factor = draw.uniform(1.05, 1.6);
  }
  const double knee = 19 * half + 8;
  const double fits = kind == 4 ? knee * draw.uniform(0.15, 0.8) : knee * draw.log_uniform(1.5, 60);
  m.memory_per_sample = (m.memory_free - m.memory_fixed) / std::max(9.0, fits);
  m.noise = draw.log_uniform(0.003, 0.04);
  m.outliers = draw.uniform(0, 0.05);
  m.drift = draw.chance(0.3) ? draw.uniform(0, 0.03) : 0;
  m.clock_jumps = draw.chance(0.2) ? draw.uniform(0, 0.1) : 0;
  m.traffic_ratio = draw.chance(0.5) ? draw.uniform(0.8, 1.1) : 1;
  return m;
}

BatchOracle batch_oracle(const BatchMachine& machine, std::int64_t first, std::int64_t cap) {
  std::vector<std::int64_t> batches;
  for (std::int64_t batch = first; batch <= cap;) {
    batches.push_back(batch);
    const std::int64_t step = std::max<std::int64_t>(batch < 8 ? 1 : 8, batch / 64);
    batch += batch < 8 ? 1 : step / 8 * 8;
  }
  if (batches.back() != cap) {
    batches.push_back(cap);
  }
  BatchOracle oracle;
  for (const std::int64_t batch : batches) {
    if (machine.rate(batch) > oracle.rate) {
      oracle.rate = machine.rate(batch);
      oracle.best = batch;
    }
  }
  for (const std::int64_t batch : batches) {
    if (machine.rate(batch) >= 0.95 * oracle.rate) {
      oracle.knee = batch;
      break;
    }
  }
  return oracle;
}

tuner::ProbeObservation BatchSimulation::run(std::int64_t batch, int steps, double min_seconds) {
  tuner::ProbeObservation seen;
  seen.batch = batch;
  if (batch > wall_ || machine_.memory(batch) > machine_.memory_free) {
    ++failures_;
    seen.failed_memory = true;
    now_ += 0.01;
    seen.seconds_used_total = now_;
    return seen;
  }
  largest_memory_ = std::max(largest_memory_, machine_.memory(batch));
  if (batch != last_batch_) {
    last_batch_ = batch;
    first_visit_ = !seen_[batch];
    seen_[batch] = true;
    cold_ = 0;
  }
  const double truth = machine_.step_seconds(batch);
  const bool jump = random_.chance(machine_.clock_jumps);
  while (seen.steps < steps || seen.seconds < min_seconds) {
    double step = truth * random_.lognormal(machine_.noise);
    step *= 1 + machine_.drift * (1 - std::exp(-now_ / 20));
    if (random_.chance(machine_.outliers)) {
      step *= 1.6;
    }
    constexpr double kFirst[] = {4, 1.5, 1.1};
    constexpr double kAgain[] = {1.3, 1.05, 1.01};
    if (cold_ < 3) {
      step *= first_visit_ ? kFirst[cold_] : kAgain[cold_];
      ++cold_;
    }
    if (jump) {
      step *= 1.04;
    }
    seen.seconds += step;
    ++seen.steps;
  }
  now_ += seen.seconds;
  steps_ += seen.steps;
  seen.seconds_used_total = now_;
  seen.clock_change = jump ? 0.04 : 0.0;
  seen.stall_share = 0.0;
  const double step = seen.seconds / seen.steps;
  seen.launch_share =
      std::max(0.0, 1 - (truth >= machine_.launch_seconds && machine_.launch_seconds <= 0
                             ? 1.0
                             : std::min(1.0, machine_.bound_seconds(batch) * 1.5 / truth)));
  seen.ledger_share = machine_.bytes(batch) / (step * machine_.bandwidth);
  if (machine_.has_meter && seen.seconds >= 0.1) {
    seen.dram_share = *seen.ledger_share * machine_.traffic_ratio * random_.lognormal(0.01);
  } else if (!machine_.has_meter) {
    seen.dram_share = seen.ledger_share;
  }
  return seen;
}

tuner::ProbeOptions probe_options(const BatchMachine& machine) {
  tuner::ProbeOptions options;
  options.configured_batch = 32;
  options.largest_fitting = machine.largest_fitting();
  options.dataset_size = machine.dataset;
  options.max_scale.reset();
  options.dram_meter = machine.has_meter;
  options.free_bytes = std::int64_t(machine.memory_free);
  for (const std::int64_t batch : tuner::probe_grid(options)) {
    options.plans.push_back({.batch = batch,
                             .planned_bytes = std::int64_t(machine.memory(batch)),
                             .bytes = machine.bytes(batch),
                             .flops = machine.flops(batch),
                             .bound_seconds = machine.bound_seconds(batch),
                             .bound_memory_seconds = machine.bound_memory_seconds(batch)});
  }
  return options;
}

tuner::ProbeResult run_probe(tuner::Probe& probe, BatchSimulation& simulation) {
  while (!probe.done()) {
    const tuner::ProbeRequest request = probe.ask();
    probe.tell(simulation.run(request.batch, request.steps, request.min_seconds));
  }
  return probe.result();
}

}  // namespace penstock::tuner_sim
