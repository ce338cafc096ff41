#include "trainers/auto_batch.h"

#include <algorithm>
#include <cmath>

#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/kernels/choice.h"
#include "framework/measure/clock.h"

namespace penstock::trainers {
namespace {

using measure::monotonic_seconds;

StepInputs probe_inputs(const Setup& setup, i64 batch) {
  StepInputs in;
  in.seed = std::uint64_t(setup.config.run.seed);
  in.learning_rate = 0;  // weights stay where they are, and so does the speed
  in.momentum = float(setup.config.optimizer.momentum);
  in.beta1 = float(setup.config.optimizer.betas[0]);
  in.beta2 = float(setup.config.optimizer.betas[1]);
  in.inverse_targets = 1.0F / float(std::max<i64>(1, batch * std::max<i64>(1, setup.targets_per_sample)));
  return in;
}

// Runs the steps that the probe asks for, always on the same samples.
class ProbeDriver {
 public:
  ProbeDriver(const Setup& setup, i64 largest)
      : setup_(setup), runner_(setup.model, step_options(setup, setup.device, largest)) {
    data::LoaderOptions options = loader_options(setup);
    options.batch = largest;
    options.depth = 1;
    options.end = std::min(largest, setup.train->size());
    data::Loader loader(setup.train, options);
    const data::Batch batch = loader.next(std::min(largest, loader.largest_batch()));
    const i64 ticket = runner_.load(batch);
    runner_.wait_copied(ticket);
    loader.release(batch);
  }

  // How many steps of `batch` samples were run, at least `least` and for at least `seconds`, and how
  // long they took.
  std::pair<int, double> run(i64 batch, int least, double seconds) {
    runner_.outcomes(true);
    const double begin = monotonic_seconds();
    int steps = 0;
    do {
      for (int i = 0; i < least; ++i, ++steps) {
        runner_.run({.count = batch, .inputs = probe_inputs(setup_, batch)});
        runner_.finish(batch, batch);
        runner_.limit_ahead(8);
        runner_.outcomes();
      }
      runner_.outcomes(true);
    } while (monotonic_seconds() - begin < seconds);
    return {steps, monotonic_seconds() - begin};
  }

 private:
  const Setup& setup_;
  StepRunner runner_;
};

// Samples per second of the loader alone, at the workers it starts with.
double measure_supply(const Setup& setup, i64 batch, double seconds, int& workers) {
  data::LoaderOptions options = loader_options(setup);
  options.batch = std::max<i64>(1, std::min<i64>(batch, 256));
  if (!setup.config.loader.workers) {
    options.workers = std::max(1, machine::cores());
  }
  workers = options.workers;
  data::Loader loader(setup.train, options);
  i64 samples = 0;
  const auto pull = [&] {
    const data::Batch b = loader.next(std::min(options.batch, loader.largest_batch()));
    loader.release(b);
    return b.count;
  };
  // What was loaded before the clock starts does not count.
  const i64 ahead = std::min(loader.slots(), (i64(options.depth) + 1) * options.batch);
  const double warm_until = monotonic_seconds() + seconds;
  for (i64 n = 0; n < ahead && monotonic_seconds() < warm_until;) {
    n += pull();
  }
  const double begin = monotonic_seconds();
  while (monotonic_seconds() - begin < seconds) {
    samples += pull();
  }
  return double(samples) / (monotonic_seconds() - begin);
}

}  // namespace

AutoBatch find_batch(const Setup& setup, const AutoBatchOptions& options) {
  const io::Config& c = setup.config;
  AutoBatch found;
  const double begin = monotonic_seconds();
  const auto say = [&](const std::string& what) {
    if (options.activity) {
      options.activity(what);
    }
  };
  say("measuring ceilings");
  found.ceilings = device_ceilings(setup.device, setup.threads);

  // What may be tried is limited by memory, the data set, the ring and keys; the probe names which.
  found.capacity = device_capacity(setup);
  i64 sample_bytes = 0;
  for (const data::Field& f : setup.train->fields()) {
    sample_bytes += f.bytes();
  }
  tuner::ProbeOptions po;
  po.configured_batch = c.train.batch * c.train.accumulate;
  po.smallest = 1;
  po.free_bytes = found.capacity;
  po.dataset_size = setup.train->size();
  po.ring_slots = std::max<i64>(2, c.loader.max_bytes / std::max<i64>(1, sample_bytes));
  if (c.auto_batch.max > 0) {
    po.auto_max = c.auto_batch.max;
  }
  po.max_scale = options.all ? std::nullopt : c.auto_batch.max_scale;
  po.remaining_samples = options.all ? 0 : total_samples(setup);
  po.hold = !options.all && c.auto_batch.policy == "hold";
  po.batch_norm = setup.batch_norm;
  po.exhaustive = options.all;
  po.knee_share = c.auto_batch.knee;
  po.dram_meter = setup.device.is_cuda();
  say("planning memory");
  const i64 most = std::min({setup.train->size(), po.ring_slots / 2,
                             setup.device.is_cuda() ? i64{1} << 17 : i64{1} << 14});
  found.largest_fitting = largest_fitting(setup, found.capacity, std::max<i64>(1, most));
  if (found.largest_fitting == 0) {
    const BatchPlan one = plan_batch(setup, 1);
    throw OutOfMemory(
        format("auto-batch: one sample needs {} and {} may be used; lower the model's size or its precision, "
               "or raise memory.limit",
               bytes_text(double(one.total())), bytes_text(double(found.capacity))),
        {.requested = one.total(), .available = found.capacity});
  }
  po.largest_fitting = found.largest_fitting;
  found.cost = cost_of(setup);
  const measure::Roof roof{.bytes_per_second = found.ceilings.bytes_per_second,
                           .flops_per_second = matmul_ceiling(found.ceilings, setup.precision)};
  measure::Roof memory_roof = roof;
  memory_roof.flops_per_second = 0;
  i64 largest = 1;
  for (const i64 b : tuner::probe_grid(po)) {
    po.plans.push_back({.batch = b,
                        .planned_bytes = plan_batch(setup, b).total(),
                        .bytes = found.cost.bytes(double(b)),
                        .flops = found.cost.flops(double(b)),
                        .bound_seconds = measure::step_seconds(found.cost, double(b), roof),
                        .bound_memory_seconds = measure::step_seconds(found.cost, double(b), memory_roof)});
    largest = std::max(largest, b);
  }
  largest = std::min(largest, found.largest_fitting);
  // A share of what the run will take, by the plan's least time; but a run of seconds still deserves an
  // answer.
  const double predicted = 2 * double(total_samples(setup)) / double(c.train.batch) *
                           measure::step_seconds(found.cost, double(c.train.batch), roof);
  const double longest = setup.device.is_cuda() ? 30 : 60;
  po.budget_share = 1;
  po.budget_seconds = options.budget_seconds > 0        ? options.budget_seconds
                      : c.auto_batch.budget_seconds > 0 ? c.auto_batch.budget_seconds
                      : options.all                     ? 600
                                    : std::clamp(c.auto_batch.budget_share * predicted, 4.0, longest);
  tuner::Probe probe(po);
  std::unique_ptr<measure::BandwidthMeter> meter = make_meter(setup.device, &found.ceilings);
  meter->set_live(true);
  meter->start();

  memory::set_limit(setup.device, found.capacity);
  {
    ProbeDriver driver(setup, largest);
    i64 last_batch = 0;
    const double probe_begin = monotonic_seconds();
    while (!probe.done()) {
      if (options.stop && options.stop()) {
        throw StepStopped();
      }
      const tuner::ProbeRequest ask = probe.ask();
      if (ask.batch != last_batch) {
        say(format("probing batch {}", ask.batch));
        last_batch = ask.batch;
      }
      const i64 choices = kernels::choices_made();
      const ledger::Totals before = ledger::totals();
      tuner::ProbeObservation seen;
      seen.batch = ask.batch;
      const double from = monotonic_seconds();
      try {
        const auto [steps, seconds] = driver.run(ask.batch, ask.steps, ask.min_seconds);
        seen.steps = steps;
        seen.seconds = seconds;
      } catch (const OutOfMemory& e) {
        // The plan said that it fits: somebody else took the memory.
        log::warning("auto-batch: batch {} ran out of memory although planned: {}", ask.batch, e.what());
        memory::trim(setup.device);
        ++found.failed_allocations;
        seen.failed_memory = true;
      }
      const double to = monotonic_seconds();
      if (kernels::choices_made() != choices) {
        found.plan_seconds += to - from;  // choosing algorithms is no step
      }
      if (seen.seconds > 0 && found.ceilings.bytes_per_second > 0) {
        seen.ledger_share = (ledger::totals() - before).bytes() / seen.seconds /
                            found.ceilings.bytes_per_second;
        if (const auto dram = meter->over(from, to); dram && dram->source == measure::Source::kGpm) {
          seen.dram_share = dram->share_of_achievable;
        } else if (setup.device.is_cpu()) {
          seen.dram_share = seen.ledger_share;
        }
      }
      seen.seconds_used_total = monotonic_seconds() - probe_begin - found.plan_seconds;
      probe.tell(seen);
    }
  }
  memory::trim(setup.device);
  found.probe = probe.result();
  found.records = probe.take_records();

  say("measuring the loader");
  found.supply = measure_supply(setup, found.probe.knee, options.all ? 1.0 : 0.4, found.supply_workers);
  for (const tuner::ProbePoint& p : found.probe.points) {
    if (p.samples_per_second >= 0.95 * std::min(found.supply, found.probe.best_rate)) {
      found.end_to_end_knee = p.batch;
      break;
    }
  }

  measure::Curve& curve = found.curve;
  curve.name = measure::name_of(setup.precision);
  for (const tuner::ProbePoint& p : found.probe.points) {
    if (p.windows == 0) {
      continue;
    }
    measure::CurvePoint point;
    point.batch = p.batch;
    point.samples_per_second = p.samples_per_second;
    point.lower = p.samples_per_second - 1.64 * p.se;
    point.upper = p.samples_per_second + 1.64 * p.se;
    if (p.dram) {
      point.dram = measure::Bandwidth{
          .bytes_per_second = *p.dram * found.ceilings.bytes_per_second,
          .share_of_theoretical = std::nullopt,
          .share_of_achievable = *p.dram,
          .source = setup.device.is_cuda() ? measure::Source::kGpm : measure::Source::kLedger};
    }
    point.memory_planned = double(p.planned_bytes);
    curve.points.push_back(std::move(point));
    if (p.bound > 0) {
      curve.bound.emplace_back(p.batch, p.bound);
    }
  }
  if (found.probe.fit_trusted) {
    curve.fit = measure::CurveFit{.a = found.probe.fit.a,
                                  .b = found.probe.fit.b,
                                  .c = found.probe.fit.c,
                                  .q = found.probe.fit.q};
    curve.half_batch = found.probe.fit.half_batch();
  }
  curve.knee = found.probe.knee;
  curve.knee_interval = std::pair(found.probe.knee_low, found.probe.knee_high);
  if (found.probe.doubling_knee > 0) {
    curve.gain_knee = found.probe.doubling_knee;
  }
  if (found.probe.elastic_knee > 0) {
    curve.elastic_knee = found.probe.elastic_knee;
  }
  if (found.probe.ended_by == "memory") {
    curve.memory_wall = found.largest_fitting;
  }
  curve.reason = found.probe.ended_by;
  found.seconds = monotonic_seconds() - begin;
  return found;
}

tuner::PolicyDecision policy_for(const Setup& setup, AutoBatch& found, const std::string& policy) {
  const io::Config& c = setup.config;
  const i64 configured = c.train.batch * c.train.accumulate;
  tuner::PolicyOptions o;
  o.policy = policy == "hold" ? tuner::BatchPolicy::kHold : tuner::BatchPolicy::kThroughput;
  o.rule = setup.optimizer.kind == optim::Kind::kSgd ? tuner::LearningRateRule::kLinear
                                                     : tuner::LearningRateRule::kSquareRoot;
  o.knee = found.probe.knee;
  o.configured_batch = configured;
  o.largest_fitting = found.largest_fitting;
  o.dataset_size = setup.train->size();
  o.remaining_samples = o.total_samples = total_samples(setup);
  o.warmup_samples = std::max<i64>(0, samples_of(c.schedule.warmup, setup, configured));
  o.max_scale = c.auto_batch.max_scale.value_or(1e9);
  if (c.auto_batch.max > 0) {
    o.auto_max = c.auto_batch.max;
  }
  o.batch_norm = setup.batch_norm;
  const tuner::PolicyDecision decision = tuner::decide_batch(o);
  found.records.push_back(tuner::to_record(o, decision));
  return decision;
}

}  // namespace penstock::trainers
