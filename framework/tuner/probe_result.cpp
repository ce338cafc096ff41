// What the probe tells: its result, its log and its words.
#include <algorithm>
#include <cmath>

#include "framework/tuner/probe.h"

namespace penstock::tuner {
namespace {

constexpr double kDeviations = 1.64;
constexpr double kWorthNaming = 0.02;  // throughput beyond a limit that is worth a word
constexpr double kSmallDoubling = 1.15;
constexpr double kSmallElasticity = 0.25;

// Smallest value in [low, high] for which `holds`, which is false and then true; 0: none.
template <class Holds>
i64 first_that(i64 low, i64 high, const Holds& holds) {
  if (low > high || !holds(high)) {
    return 0;
  }
  while (low < high) {
    const i64 middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::string thousands(double value) {
  if (value < 100) {
    return format("{:.1f}", value);
  }
  const std::string digits = format("{:.0f}", value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

// The key that lifts a limit.
std::string remedy_for(const std::string& limit) {
  if (limit == "memory") {
    return "model.recompute: blocks or a lower train.precision would let it grow";
  }
  if (limit == "data set") {
    return "the data set has no more samples";
  }
  if (limit == "optimizer steps") {
    return "a longer run would allow it";
  }
  if (limit == "held batch") {
    return "policy throughput would allow it";
  }
  return format("raise {} to allow it", limit);
}

}  // namespace

void Probe::mark(const std::string& text) {
  if (std::find(marks_.begin(), marks_.end(), text) == marks_.end()) {
    marks_.push_back(text);
  }
}

void Probe::log_start() {
  Record record("probe.start");
  record.set("configured_batch", options_.configured_batch).set("smallest", options_.smallest);
  record.set("largest_fitting", options_.largest_fitting).set("free_bytes", options_.free_bytes);
  record.set("dataset_size", options_.dataset_size).set("ring_slots", options_.ring_slots);
  record.set("auto_max", options_.auto_max.value_or(0));
  record.set("max_scale", options_.max_scale.value_or(0));
  record.set("remaining_samples", options_.remaining_samples).set("min_steps", options_.min_steps);
  record.set("knee_share", options_.knee_share).set("hold", options_.hold);
  record.set("exhaustive", options_.exhaustive).set("batch_norm", options_.batch_norm);
  record.set("budget_share", options_.budget_share).set("budget_steps", options_.budget_steps);
  record.set("budget_seconds", options_.budget_seconds);
  record.set("use_bandwidth", options_.use_bandwidth).set("dram_meter", options_.dram_meter);
  std::vector<double> columns[6];
  for (const BatchPlan& plan : options_.plans) {
    columns[0].push_back(double(plan.batch));
    columns[1].push_back(double(plan.planned_bytes));
    columns[2].push_back(plan.bytes);
    columns[3].push_back(plan.flops);
    columns[4].push_back(plan.bound_seconds);
    columns[5].push_back(plan.bound_memory_seconds);
  }
  record.set("plan_batch", columns[0]).set("plan_planned_bytes", columns[1]);
  record.set("plan_bytes", columns[2]).set("plan_flops", columns[3]);
  record.set("plan_bound_seconds", columns[4]).set("plan_bound_memory_seconds", columns[5]);
  records_.push_back(std::move(record));
}

void Probe::build_result() {
  ProbeResult& r = result_;
  const Estimate best = reference();
  r.knee = answer(best);
  r.best_batch = best_measured();
  r.best_rate = best.rate;
  if (r.best_batch == 0) {  // nothing but warm-up: it is all there is
    r.best_batch = r.knee;
    r.best_rate = estimate(r.knee).rate;
  }
  const Estimate chosen = estimate(r.knee);
  r.knee_share = r.best_rate > 0 ? chosen.rate / r.best_rate : 0;
  for (const auto& [batch, visit] : visits_) {
    const Estimate now = estimate(batch);
    if (now.rate <= 0) {
      continue;
    }
    ProbePoint point;
    point.batch = batch;
    point.samples_per_second = now.rate;
    point.se = now.error;
    point.windows = int(visit.rates.size());
    point.discarded_steps = visit.discarded;
    point.step_seconds = double(batch) / now.rate;
    point.dram = visit.dram;
    point.launch = visit.launch;
    point.stall = visit.stall;
    point.bound = bound_rate(batch);
    point.eta = point.bound > 0 ? now.rate / point.bound : 0;
    if (const std::optional<BatchPlan> plan = plan_of(batch)) {
      point.planned_bytes = plan->planned_bytes;
    }
    r.points.push_back(point);
  }
  r.fit = fit_;
  r.fit_trusted = trusted_;
  r.fit_miss = worst_miss_;
  r.largest_fitting = options_.largest_fitting;
  r.ended_by = ended_by_.empty() ? "budget" : ended_by_;
  r.steps = steps_;
  r.seconds = used_;
  r.failed_allocations = failed_;
  if (!trusted_ && r.points.size() >= 3) {
    mark("curve not of the usual form: measured points only");
  }
  if (options_.batch_norm) {
    mark("batch norm statistics follow the micro-batch");
  }

  // The batches that the errors leave open.
  r.knee_low = r.knee_high = r.knee;
  for (const ProbePoint& point : r.points) {
    const double share = point.samples_per_second / std::max(1e-300, r.best_rate);
    const double error =
        share * std::hypot(point.se / point.samples_per_second, best.error / r.best_rate);
    if (point.windows > 0 && share + kDeviations * error >= options_.knee_share) {
      r.knee_low = std::min(r.knee_low, point.batch);
    }
    if (point.windows > 0 && share - kDeviations * error >= options_.knee_share) {
      r.knee_high = std::max(r.knee, point.batch);
      break;
    }
  }
  if (use_fit() && best.rate > 0) {
    const double error =
        std::hypot(best.error / best.rate, fit_.relative_error / std::sqrt(double(fit_.points)));
    const double asked = options_.knee_share * best.rate;
    r.knee_low = std::min(r.knee, needed_batch(asked * (1 - kDeviations * error)));
    r.knee_high =
        std::max(r.knee, needed_batch(std::min(best.rate, asked * (1 + kDeviations * error))));
  }
  other_knees();
  judge_limits();
  r.marks = marks_;

  Record record("probe.result");
  record.set("knee", r.knee).set("knee_low", r.knee_low).set("knee_high", r.knee_high);
  record.set("best_batch", r.best_batch).set("best_rate", rounded(r.best_rate));
  record.set("knee_share", rounded(r.knee_share)).set("half_batch", rounded(fit_.half_batch()));
  record.set("limit_rate", rounded(fit_.limit())).set("fit_trusted", trusted_);
  record.set("fit_miss", rounded(worst_miss_)).set("elasticity", rounded(r.elasticity));
  record.set("doubling_knee", r.doubling_knee).set("elastic_knee", r.elastic_knee);
  record.set("ended_by", r.ended_by).set("left_on_table", rounded(r.left_on_table));
  record.set("steps", r.steps).set("seconds", rounded(r.seconds));
  std::string marks;
  for (const std::string& text : r.marks) {
    marks += marks.empty() ? "" : "; ";
    marks += text;
  }
  record.set("marks", marks);
  records_.push_back(std::move(record));
}

void Probe::other_knees() {
  ProbeResult& r = result_;
  if (trusted_) {
    r.elasticity = fit_.elasticity(double(r.knee));
    r.doubling_knee = first_that(1, top(), [this](i64 batch) {
      return fit_.rate(2 * double(batch)) < kSmallDoubling * fit_.rate(double(batch));
    });
    r.elastic_knee = first_that(
        1, top(), [this](i64 batch) { return fit_.elasticity(double(batch)) < kSmallElasticity; });
  } else {
    // Differences of neighbours stand for the slope.
    for (std::size_t i = 0; i + 1 < r.points.size(); ++i) {
      const ProbePoint& x = r.points[i];
      const ProbePoint& y = r.points[i + 1];
      const double gain = std::log(y.samples_per_second / x.samples_per_second);
      const double slope = std::clamp(gain / std::log(double(y.batch) / double(x.batch)), 0.0, 1.0);
      if (x.batch == r.knee || y.batch == r.knee) {
        r.elasticity = slope;
      }
      if (r.elastic_knee == 0 && slope < kSmallElasticity) {
        r.elastic_knee = x.batch;
      }
      if (r.doubling_knee == 0 && slope < std::log2(kSmallDoubling)) {
        r.doubling_knee = x.batch;
      }
    }
  }
  const double chosen = estimate(r.knee).rate;
  const auto share_at = [this](i64 batch, double of) {
    const double known = estimate(batch).rate;
    return of <= 0 ? 0.0 : known > 0 ? known / of : trusted_ ? fit_.rate(double(batch)) / of : 0.0;
  };
  r.largest_rate_share = share_at(r.largest_fitting, r.best_rate);
  r.configured_rate_share = share_at(options_.configured_batch, chosen);
}

// Did a limit end the curve before its knee, and what does that cost?
void Probe::judge_limits() {
  ProbeResult& r = result_;
  if (ended_by_ != cap_.key || r.points.empty()) {
    return;
  }
  const double inside = 1 - 0.7 * (1 - options_.knee_share);
  if (trusted_ && fit_.limit() > 0 && fit_.q <= 0) {
    r.left_on_table = std::max(0.0, inside * fit_.limit() / estimate(r.knee).rate - 1);
  } else if (!trusted_ && r.elasticity > 0.2) {
    r.left_on_table = std::pow(2.0, r.elasticity / 2) - 1;  // of one more doubling, about
  }
  if (r.left_on_table < kWorthNaming) {
    r.left_on_table = 0;
    return;
  }
  mark(cap_.key == "memory" ? std::string("capacity-bound") : format("limited by {}", cap_.key));
}

std::string explain(const ProbeResult& result) {
  const ProbePoint* chosen = nullptr;
  const ProbePoint* largest = nullptr;
  for (const ProbePoint& point : result.points) {
    if (point.batch == result.knee) {
      chosen = &point;
    }
    if (point.windows > 0) {
      largest = &point;
    }
  }
  if (chosen == nullptr) {
    return "nothing was measured";
  }
  std::string text = format("batch {}: {} samples/s, {:.1f} % of the best ({} samples/s)",
                            result.knee, thousands(chosen->samples_per_second),
                            100 * result.knee_share, thousands(result.best_rate));
  if (result.configured_rate_share > 0 && std::abs(result.configured_rate_share - 1) > 0.02) {
    text += format("; {:.2f} times the configured batch", 1 / result.configured_rate_share);
  }
  text += ".\n";
  if (result.knee_low < result.knee_high) {
    text += format("The knee lies between {} and {}. ", result.knee_low, result.knee_high);
  }
  if (result.fit_trusted && result.fit.half_batch() > 0) {
    text += format(
        "Half of the limit of {} samples/s is reached at batch {:.1f} (B_half); at batch "
        "{} {:.0f} % of the step is cost that does not grow with the batch.\n",
        thousands(result.fit.limit()), result.fit.half_batch(), result.knee,
        100 * result.elasticity);
  } else {
    text += format(
        "At batch {} about {:.0f} % of the step is cost that does not grow with the "
        "batch.\n",
        result.knee, 100 * result.elasticity);
  }
  if (chosen->dram) {
    text +=
        format("Memory bandwidth there: {:.0f} % of what the device can give", 100 * *chosen->dram);
    if (chosen->eta > 0) {
      text += format("; {:.0f} % of the speed that bytes and FLOPs allow", 100 * chosen->eta);
    }
    text += ".\n";
  }
  if (result.doubling_knee > 0 || result.elastic_knee > 0) {
    text += "Other definitions:";
    if (result.doubling_knee > 0) {
      text += format(" doubling gains less than 15 % from batch {}", result.doubling_knee);
    }
    if (result.elastic_knee > 0) {
      text += format("{} fixed cost is below 25 % from batch {}",
                     result.doubling_knee > 0 ? "," : "", result.elastic_knee);
    }
    text += ".\n";
  }
  if (result.largest_fitting > result.knee) {
    text += format("The largest batch that fits is {}", result.largest_fitting);
    if (result.largest_rate_share > 0 && result.knee_share > 0) {
      const double gain = result.largest_rate_share / result.knee_share - 1;
      text += format(": {:+.1f} % throughput for {:.1f} times the batch{}", 100 * gain,
                     double(result.largest_fitting) / double(result.knee),
                     largest->batch < result.largest_fitting ? " (predicted)" : "");
    }
    text += ".\n";
  }
  if (result.ended_by == "saturated") {
    text += "The search went up until larger batches brought nothing.";
  } else if (result.ended_by == "stall") {
    text +=
        "The search ended because the loader is slower than the step: a larger batch does not "
        "help; raise loader.workers.";
  } else if (result.ended_by == "budget") {
    text += "The search ended because its budget was spent.";
  } else {
    text += format("The search ended at a limit: {}", result.ended_by);
    if (result.left_on_table > 0) {
      text += format("; about {:.0f} % more lies beyond, {}", 100 * result.left_on_table,
                     remedy_for(result.ended_by));
    }
    text += ".";
  }
  text += format(" {} steps, {:.1f} s.\n", result.steps, result.seconds);
  for (const std::string& note : result.marks) {
    text += format("Note: {}.\n", note);
  }
  return text;
}

}  // namespace penstock::tuner
