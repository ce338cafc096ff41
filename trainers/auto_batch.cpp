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

  // Seconds that `steps` steps of `batch` samples take.
  double run(i64 batch, int steps) {
    runner_.outcomes(true);
    const double begin = monotonic_seconds();
    for (int i = 0; i < steps; ++i) {
      runner_.run({.count = batch, .inputs = probe_inputs(setup_, batch)});
      runner_.finish(batch, batch);
      runner_.limit_ahead(8);
      runner_.outcomes();
    }
    runner_.outcomes(true);
    return monotonic_seconds() - begin;
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

  // What may be tried: memory, data set, ring and key limit it; each by its name.
  found.capacity = device_capacity(setup);
  i64 most = setup.train->size();
  std::string cap = "the data set has no more samples";
  std::string cap_key;
  i64 sample_bytes = 0;
  for (const data::Field& f : setup.train->fields()) {
    sample_bytes += f.bytes();
  }
  const auto limit = [&](i64 value, const char* why, const char* key) {
    if (value < most) {
      most = std::max<i64>(1, value);
      cap = why;
      cap_key = key;
    }
  };
  limit(c.loader.max_bytes / std::max<i64>(1, sample_bytes) / 2, "the loader's ring holds no more",
        "loader.max_bytes");
  if (c.auto_batch.max > 0) {
    limit(c.auto_batch.max, "auto_batch.max", "auto_batch.max");
  }
  limit(setup.device.is_cuda() ? i64{1} << 17 : i64{1} << 14, "no larger batch is tried", "");
  // Beyond what the policy could use, measuring tells nothing that changes the answer.
  if (!options.all && c.auto_batch.policy != "hold" && c.auto_batch.max_scale) {
    limit(i64(2 * *c.auto_batch.max_scale * double(c.train.batch * c.train.accumulate)),
          "auto_batch.max_scale allows no more", "auto_batch.max_scale");
  }
  if (!options.all && c.auto_batch.policy == "hold") {
    limit(c.train.batch * c.train.accumulate, "the configured batch is held", "train.batch");
  }
  say("planning memory");
  found.largest_fitting = largest_fitting(setup, found.capacity, most);
  if (found.largest_fitting == 0) {
    const BatchPlan one = plan_batch(setup, 1);
    throw OutOfMemory(
        format("auto-batch: one sample needs {} and {} may be used; lower the model's size or its precision, "
               "or raise memory.limit",
               bytes_text(double(one.total())), bytes_text(double(found.capacity))),
        {.requested = one.total(), .available = found.capacity});
  }
  if (found.largest_fitting < most) {
    cap = "memory";
    cap_key = "memory.limit";
  }
  found.cost = cost_of(setup);
  const measure::Roof roof{.bytes_per_second = found.ceilings.bytes_per_second,
                           .flops_per_second = matmul_ceiling(found.ceilings, setup.precision)};
  tuner::ProbeOptions probe_options;
  probe_options.configured = std::min(c.train.batch, found.largest_fitting);
  i64 largest = 1;
  for (const i64 b : tuner::probe_grid(found.largest_fitting, probe_options.configured)) {
    probe_options.candidates.push_back({.batch = b,
                                        .bound_seconds = measure::step_seconds(found.cost, double(b), roof),
                                        .planned_bytes = plan_batch(setup, b).total()});
    largest = std::max(largest, b);
  }
  const double t1 = measure::step_seconds(found.cost, 64, roof);
  const double t2 = measure::step_seconds(found.cost, 128, roof);
  probe_options.bound_per_sample = (t2 - t1) / 64;
  probe_options.bound_fixed = std::max(0.0, t1 - 64 * probe_options.bound_per_sample);
  probe_options.cap = cap;
  probe_options.cap_key = cap_key;
  probe_options.knee = c.auto_batch.knee;
  probe_options.budget_seconds = options.budget_seconds > 0        ? options.budget_seconds
                                 : c.auto_batch.budget_seconds > 0 ? c.auto_batch.budget_seconds
                                 : options.all                     ? 600
                                 : setup.device.is_cuda()          ? 30
                                                                   : 60;
  tuner::Probe probe(probe_options);
  std::unique_ptr<measure::BandwidthMeter> meter = make_meter(setup.device, &found.ceilings);
  meter->set_live(true);
  meter->start();

  memory::set_limit(setup.device, found.capacity);
  {
    ProbeDriver driver(setup, largest);
    i64 last_batch = 0;
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
      tuner::ProbeReport seen;
      const double from = monotonic_seconds();
      try {
        seen.seconds = driver.run(ask.batch, ask.steps);
      } catch (const OutOfMemory& e) {
        // The plan said that it fits: somebody else took the memory.
        log::warning("auto-batch: batch {} ran out of memory although planned: {}", ask.batch, e.what());
        memory::trim(setup.device);
        ++found.failed_allocations;
        seen.out_of_memory = true;
      }
      const double to = monotonic_seconds();
      if (kernels::choices_made() != choices) {
        found.plan_seconds += to - from;  // choosing algorithms is no step
      }
      if (seen.seconds > 0 && found.ceilings.bytes_per_second > 0) {
        if (const auto dram = meter->over(from, to); dram && dram->source == measure::Source::kGpm) {
          seen.dram_share = dram->share_of_achievable;
        } else if (setup.device.is_cpu()) {
          seen.dram_share = (ledger::totals() - before).bytes() / seen.seconds /
                            found.ceilings.bytes_per_second;
        }
      }
      seen.spent = monotonic_seconds() - begin - found.plan_seconds;
      probe.tell(seen);
    }
  }
  memory::trim(setup.device);
  found.probe = probe.result();
  found.records = probe.take_records();

  say("measuring the loader");
  found.supply = measure_supply(setup, found.probe.batch, options.all ? 1.0 : 0.4, found.supply_workers);
  for (const tuner::ProbePoint& p : found.probe.points) {
    if (p.rate >= 0.95 * std::min(found.supply, found.probe.best_rate)) {
      found.end_to_end_knee = p.batch;
      break;
    }
  }

  measure::Curve& curve = found.curve;
  curve.name = measure::name_of(setup.precision);
  for (const tuner::ProbePoint& p : found.probe.points) {
    measure::CurvePoint point;
    point.batch = p.batch;
    point.samples_per_second = p.rate;
    if (p.cold) {
      point.note = "not measured warm";
    } else {
      point.lower = p.lower;
      point.upper = p.upper;
    }
    if (p.dram_share) {
      point.dram = measure::Bandwidth{
          .bytes_per_second = *p.dram_share * found.ceilings.bytes_per_second,
          .share_of_theoretical = std::nullopt,
          .share_of_achievable = *p.dram_share,
          .source = setup.device.is_cuda() ? measure::Source::kGpm : measure::Source::kLedger};
    }
    point.memory_planned = double(p.planned_bytes);
    curve.points.push_back(std::move(point));
    if (p.bound > 0) {
      curve.bound.emplace_back(p.batch, p.bound);
    }
  }
  if (found.probe.b > 0) {
    curve.fit = measure::CurveFit{.a = found.probe.a, .b = found.probe.b, .c = found.probe.c};
    curve.half_batch = found.probe.half_batch;
  }
  curve.knee = found.probe.batch;
  curve.knee_interval = std::pair(found.probe.low, found.probe.high);
  if (found.probe.gain_knee > 0) {
    curve.gain_knee = found.probe.gain_knee;
  }
  if (found.probe.elastic_knee > 0) {
    curve.elastic_knee = found.probe.elastic_knee;
  }
  if (cap == "memory") {
    curve.memory_wall = found.largest_fitting;
  }
  curve.reason = found.probe.stop;
  found.seconds = monotonic_seconds() - begin;
  return found;
}

tuner::PolicyAnswer policy_for(const Setup& setup, const AutoBatch& found, const std::string& policy) {
  const io::Config& c = setup.config;
  return tuner::apply_policy({.policy = policy,
                              .configured = c.train.batch,
                              .accumulate = c.train.accumulate,
                              .knee = found.probe.batch,
                              .largest = found.largest_fitting,
                              .adaptive = setup.optimizer.kind != optim::Kind::kSgd,
                              .max_scale = c.auto_batch.max_scale.value_or(0),
                              .total_samples = total_samples(setup),
                              .warmup = c.schedule.warmup.unit != io::Period::Unit::kNever,
                              .batch_norm = setup.batch_norm});
}

}  // namespace penstock::trainers
