#include "framework/tuner/policy.h"

#include <algorithm>
#include <cmath>

namespace penstock::tuner {
namespace {

constexpr double kRampShare = 0.02;  // of the samples of the run

double power_of_two_in(i64 value) {
  return double(value & -value);
}

// Multiples of 8 from 8 on, as the grid of the probe.
i64 rounded_down(i64 batch) {
  return batch >= 8 ? batch / 8 * 8 : batch;
}

struct Limit {
  i64 batch;
  std::string name;
};

// The smallest limit, and the names of all that lie below the knee.
i64 limited(const PolicyOptions& options, std::vector<std::string>& names) {
  std::vector<Limit> limits;
  const i64 configured = options.configured_batch;
  if (options.largest_fitting > 0) {
    limits.push_back({options.largest_fitting, "memory"});
  }
  if (options.dataset_size > 0) {
    limits.push_back({options.dataset_size, "the data set"});
  }
  if (options.auto_max) {
    limits.push_back({std::max<i64>(1, *options.auto_max), "auto_batch.max"});
  }
  const double scaled = options.max_scale * double(configured);
  if (scaled < 9e15) {
    limits.push_back({std::max<i64>(1, i64(scaled)), "auto_batch.max_scale"});
  }
  if (options.remaining_samples > 0 && options.min_steps > 0) {
    // A configured batch that leaves fewer steps already stays.
    const i64 most = std::max(options.remaining_samples / options.min_steps, configured);
    limits.push_back({most, format("at least {} optimizer steps", options.min_steps)});
  }
  i64 batch = options.knee;
  for (const Limit& limit : limits) {
    if (limit.batch < options.knee) {
      names.push_back(limit.name);
      const i64 down = rounded_down(limit.batch);
      // A configured batch that lies exactly at a limit is no worse than its neighbour.
      batch = std::min(batch, configured <= limit.batch && configured > down ? configured : down);
    }
  }
  return std::max<i64>(1, batch);
}

PolicyDecision throughput(const PolicyOptions& options) {
  PolicyDecision decision;
  const i64 batch = limited(options, decision.limits);
  decision.micro_batch = decision.effective_batch = batch;
  decision.micro_batches = {batch};
  decision.kappa = double(batch) / double(options.configured_batch);
  if (options.rule == LearningRateRule::kLinear) {
    decision.learning_rate_factor = decision.kappa;
  } else if (options.rule == LearningRateRule::kSquareRoot) {
    decision.learning_rate_factor = std::sqrt(decision.kappa);
    decision.beta_power = decision.kappa;
  }
  const i64 current = options.current_batch > 0 ? options.current_batch : options.configured_batch;
  const bool covered = options.before_first_step && options.warmup_samples > 0;
  if (batch != current && options.rule != LearningRateRule::kNone && !covered) {
    const i64 share = i64(kRampShare * double(options.total_samples));
    decision.ramp_samples = std::max({options.warmup_samples, share, batch});
  }
  decision.bn_momentum = options.bn_momentum;
  if (options.batch_norm && batch != options.configured_batch) {
    decision.warnings.push_back(
        format("batch norm statistics are taken over {} samples instead of {}", batch,
               options.configured_batch));
  }
  if (options.remaining_samples > 0 && options.remaining_samples / batch < options.min_steps) {
    decision.warnings.push_back(
        format("only {} optimizer steps remain at batch {}, fewer than {}: the configured batch "
               "leaves no more either",
               options.remaining_samples / batch, batch, options.min_steps));
  }
  if (decision.kappa > 4) {
    decision.warnings.push_back(
        format("the batch grows {:.1f} times: throughput is measured, the loss per sample is not; "
               "compare with policy hold",
               decision.kappa));
  }
  decision.reason = format(
      "throughput: batch {} -> {} (knee {}), learning rate x {:.3f} ({}){}",
      options.configured_batch, batch, options.knee, decision.learning_rate_factor,
      name_of(options.rule),
      decision.ramp_samples > 0 ? format(", reached over {} samples", decision.ramp_samples) : "");
  return decision;
}

// Largest divisor of `whole` that is at most `most` and worth having: at least 0.7 of it, or a
// multiple of 8 that is at least half of it. 0: none.
i64 good_divisor(i64 whole, i64 most) {
  i64 best = 0;
  for (i64 parts = 1; parts <= whole / std::max<i64>(1, most / 2) + 1 && parts <= whole; ++parts) {
    if (whole % parts != 0 || whole / parts > most) {
      continue;
    }
    const i64 micro = whole / parts;
    const bool near = 10 * micro >= 7 * most;
    const bool friendly = 2 * micro >= most && power_of_two_in(micro) >= 8;
    if (near || friendly) {
      best = micro;
      break;
    }
  }
  return best;
}

PolicyDecision hold(const PolicyOptions& options) {
  PolicyDecision decision;
  const i64 whole = options.configured_batch;
  i64 most = std::min(options.knee, whole);
  if (options.largest_fitting > 0 && options.largest_fitting < most) {
    most = options.largest_fitting;
    decision.limits.push_back("memory");
  }
  if (options.auto_max && *options.auto_max < most) {
    most = std::max<i64>(1, *options.auto_max);
    decision.limits.push_back("auto_batch.max");
  }
  decision.effective_batch = whole;
  i64 micro = good_divisor(whole, most);
  if (micro > 0) {
    decision.accumulate = whole / micro;
    decision.micro_batches.assign(std::size_t(decision.accumulate), micro);
  } else {
    // Unequal micro-batches, weighted by their count: all full but the last.
    micro = most;
    decision.accumulate = (whole + micro - 1) / micro;
    decision.micro_batches.assign(std::size_t(decision.accumulate), micro);
    decision.micro_batches.back() = whole - (decision.accumulate - 1) * micro;
    if (options.batch_norm && decision.micro_batches.back() == 1 && decision.accumulate > 1) {
      // Batch norm cannot take a single sample: it joins the micro-batch before where that fits.
      const bool room = options.largest_fitting == 0 || micro + 1 <= options.largest_fitting;
      decision.micro_batches.pop_back();
      if (room) {
        decision.micro_batches.back() += 1;
      } else {
        decision.micro_batches.back() -= 1;
        decision.micro_batches.push_back(2);
      }
      decision.accumulate = i64(decision.micro_batches.size());
    }
    decision.warnings.push_back(
        format("no good divisor of {} is at most {}: micro-batches of {} and a last one of {}, "
               "weighted by their samples",
               whole, most, micro, decision.micro_batches.back()));
  }
  decision.micro_batch = micro;
  decision.bn_momentum = 1 - std::pow(1 - options.bn_momentum, double(micro) / double(whole));
  if (options.batch_norm && micro != whole) {
    decision.warnings.push_back(format(
        "batch norm statistics follow the micro-batch: {} samples instead of {}; momentum {:.4f} "
        "instead of {:.4f} keeps their time constant",
        micro, whole, decision.bn_momentum, options.bn_momentum));
  } else if (micro == whole) {
    decision.bn_momentum = options.bn_momentum;
  }
  if (options.knee > whole) {
    decision.warnings.push_back(
        format("the knee {} lies above the held batch {}: policy throughput would be faster",
               options.knee, whole));
  }
  decision.reason = format("hold: {} = {} x {} samples per step, learning rate unchanged", whole,
                           decision.accumulate, micro);
  return decision;
}

}  // namespace

const char* name_of(BatchPolicy policy) {
  return policy == BatchPolicy::kHold ? "hold" : "throughput";
}

const char* name_of(LearningRateRule rule) {
  switch (rule) {
    case LearningRateRule::kLinear: return "linear";
    case LearningRateRule::kSquareRoot: return "square root";
    case LearningRateRule::kNone: break;
  }
  return "none";
}

PolicyDecision decide_batch(const PolicyOptions& options) {
  if (options.knee < 1 || options.configured_batch < 1) {
    throw ConfigError(
        format("batch policy: knee {} and configured batch {} should be at least 1; "
               "set train.batch",
               options.knee, options.configured_batch));
  }
  if (!(options.max_scale > 0)) {
    throw ConfigError(
        format("batch policy: auto_batch.max_scale {} should be above 0", options.max_scale));
  }
  if (!(options.bn_momentum >= 0 && options.bn_momentum <= 1)) {
    throw ConfigError(format("batch policy: batch norm momentum {} should lie between 0 and 1",
                             options.bn_momentum));
  }
  return options.policy == BatchPolicy::kHold ? hold(options) : throughput(options);
}

Record to_record(const PolicyOptions& options, const PolicyDecision& decision) {
  Record record("policy.decision");
  record.set("policy", name_of(options.policy)).set("rule", name_of(options.rule));
  record.set("knee", options.knee).set("configured_batch", options.configured_batch);
  record.set("current_batch", options.current_batch);
  record.set("largest_fitting", options.largest_fitting);
  record.set("dataset_size", options.dataset_size);
  record.set("remaining_samples", options.remaining_samples);
  record.set("total_samples", options.total_samples);
  record.set("warmup_samples", options.warmup_samples);
  record.set("before_first_step", options.before_first_step);
  record.set("max_scale", options.max_scale).set("min_steps", options.min_steps);
  record.set("auto_max", options.auto_max.value_or(0)).set("batch_norm", options.batch_norm);
  record.set("bn_momentum", options.bn_momentum);
  record.set("micro_batch", decision.micro_batch).set("accumulate", decision.accumulate);
  record.set("effective_batch", decision.effective_batch).set("kappa", decision.kappa);
  record.set("learning_rate_factor", decision.learning_rate_factor);
  record.set("beta_power", decision.beta_power);
  record.set("new_bn_momentum", decision.bn_momentum);
  record.set("ramp_samples", decision.ramp_samples).set("reason", decision.reason);
  std::string limits;
  for (const std::string& limit : decision.limits) {
    limits += limits.empty() ? "" : ", ";
    limits += limit;
  }
  record.set("limits", limits);
  return record;
}

}  // namespace penstock::tuner
