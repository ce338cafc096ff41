// What the measurements say: estimates, the reference, and which batch to measure next.
#include <algorithm>
#include <cmath>

#include "framework/tuner/probe.h"

namespace penstock::tuner {
namespace {

constexpr double kDeviations = 1.64;
constexpr double kUnknownNoise = 0.02;  // of a window, before anything is known
constexpr double kLeastNoise = 0.002;
constexpr double kPriorWindows = 6;  // weight of the noise over all batches against the own
constexpr int kMostWindows = 24;
constexpr int kRefineWindows = 3;
constexpr int kMostRefinements = 4;
constexpr int kMostTurns = 40;
constexpr double kPredicted = 0.10;  // a doubling missed by more: measured points only
constexpr double kFellShort = 0.01;
constexpr double kFits = 0.05;    // root mean square error of a fit that may be used
constexpr double kFitReach = 32;  // batches down to the largest / this are fitted
constexpr double kFriendlyReach = 1.15;
constexpr double kInside = 0.7;  // of the tolerance is used inside: half of the runs land below

i64 on_grid(i64 batch) {
  return batch >= 8 ? batch / 8 * 8 : batch;
}

i64 power_of_two_in(i64 value) {
  return value & -value;
}

}  // namespace

double Probe::noise() const {
  std::vector<double> deviations;
  for (const auto& [batch, visit] : visits_) {
    const std::size_t n = visit.rates.size();
    if (n < 2) {
      continue;
    }
    const double centre = median(visit.rates);
    for (const double rate : visit.rates) {
      deviations.push_back(std::abs(rate / centre - 1) * std::sqrt(double(n) / double(n - 1)));
    }
  }
  return deviations.empty() ? 0.0 : std::max(kLeastNoise, 1.483 * median(deviations));
}

Probe::Estimate Probe::estimate(i64 batch) const {
  const auto found = visits_.find(batch);
  if (found == visits_.end()) {
    return {};
  }
  const Visit& visit = found->second;
  if (visit.rates.empty()) {
    if (visit.warm.empty()) {
      return {};
    }
    const double rate = double(batch) / *std::min_element(visit.warm.begin(), visit.warm.end());
    return {.rate = rate, .error = 0.1 * rate};
  }
  const double n = double(visit.rates.size());
  const double rate = median(visit.rates);
  const double own = median_deviation(visit.rates, rate) / rate;
  const double all = noise() > 0 ? noise() : kUnknownNoise;
  const double pooled = all / 1.483;
  const double mad =
      std::sqrt((n * own * own + kPriorWindows * pooled * pooled) / (n + kPriorWindows));
  return {.rate = rate, .error = rate * median_error(mad, visit.rates.size())};
}

std::vector<CurvePoint> Probe::curve_points() const {
  std::vector<CurvePoint> points;
  for (const auto& [batch, visit] : visits_) {
    if (!visit.rates.empty()) {
      const Estimate now = estimate(batch);
      points.push_back({.batch = double(batch),
                        .seconds = double(batch) / now.rate,
                        .error = now.error / now.rate});
    }
  }
  return points;
}

// Fits again, and asks whether the predictions made before measuring came true.
void Probe::refit(i64 measured) {
  const std::vector<CurvePoint> points = curve_points();
  if (points.empty()) {
    fit_ = {};
    trusted_ = false;
    return;
  }
  // The upper octaves hold the knee: far below them other limits rule.
  std::vector<CurvePoint> upper;
  for (const CurvePoint& point : points) {
    if (point.batch * kFitReach >= points.back().batch) {
      upper.push_back(point);
    }
  }
  fit_ = fit_step_time(upper.size() >= 3 ? upper : points);
  const auto found = predictions_.find(measured);
  if (found != predictions_.end() && visits_[measured].rates.size() == 1) {
    Record record("probe.prediction");
    record.set("batch", measured).set("predicted", rounded(found->second));
    record.set("rate", rounded(visits_[measured].rates.front()));
    records_.push_back(std::move(record));
  }
  // Early predictions may miss a floor that later points show: the upper octave counts.
  double worst = 0;
  int judged = 0;
  const i64 most = predictions_.empty() ? 0 : predictions_.rbegin()->first;
  for (const auto& [batch, rate] : predictions_) {
    const auto visit = visits_.find(batch);
    if (2 * batch >= most && visit != visits_.end() && !visit->second.rates.empty()) {
      worst = std::max(worst, std::abs(estimate(batch).rate / rate - 1));
      ++judged;
    }
  }
  worst_miss_ = worst;
  trusted_ = judged > 0 && worst <= kPredicted && fit_.points >= 3 && fit_.relative_error <= kFits;
}

std::optional<BatchPlan> Probe::plan_of(i64 batch) const {
  const std::vector<BatchPlan>& plans = options_.plans;
  const auto above =
      std::lower_bound(plans.begin(), plans.end(), batch,
                       [](const BatchPlan& plan, i64 wanted) { return plan.batch < wanted; });
  if (above != plans.end() && above->batch == batch) {
    return *above;
  }
  if (plans.size() < 2) {
    return std::nullopt;
  }
  // Between two plans, or beyond the last two: traffic, FLOPs and memory are nearly affine.
  const auto upper = above == plans.end()     ? std::prev(above)
                     : above == plans.begin() ? std::next(above)
                                              : above;
  const BatchPlan& x = *std::prev(upper);
  const BatchPlan& y = *upper;
  const double at = double(batch - x.batch) / double(y.batch - x.batch);
  const auto between = [at](double from, double to) {
    return std::max(0.0, from + at * (to - from));
  };
  return BatchPlan{.batch = batch,
                   .planned_bytes = i64(between(double(x.planned_bytes), double(y.planned_bytes))),
                   .bytes = between(x.bytes, y.bytes),
                   .flops = between(x.flops, y.flops),
                   .bound_seconds = between(x.bound_seconds, y.bound_seconds),
                   .bound_memory_seconds = between(x.bound_memory_seconds, y.bound_memory_seconds)};
}

// Samples per second that bytes and FLOPs allow; 0: unknown. Traffic is corrected by what the meter
// measured, so that the bound stays a bound: an op takes at least the longer of its two times.
double Probe::bound_rate(i64 batch) const {
  const std::optional<BatchPlan> plan = plan_of(batch);
  if (!plan || plan->bound_seconds <= 0 || bound_dropped_ || !options_.use_bandwidth) {
    return 0;
  }
  const double memory = plan->bound_memory_seconds;
  const double seconds = traffic_ratio_ >= 1
                             ? std::max(plan->bound_seconds, traffic_ratio_ * memory)
                             : plan->bound_seconds - (1 - traffic_ratio_) * memory;
  return seconds > 0 ? double(batch) / seconds : 0;
}

// Faster than the bound: caches hold part of what the plan counts as traffic.
void Probe::check_bound(i64 batch) {
  const double bound = bound_rate(batch);
  if (bound <= 0) {
    return;
  }
  const Estimate now = estimate(batch);
  if (at_least(now.rate / bound, now.error / bound, 1.02) == Answer::kYes) {
    bound_dropped_ = true;
    mark("bound dropped: caches hold part of the traffic");
  }
}

i64 Probe::top() const {
  return std::max(grid_.empty() ? i64{1} : grid_.back(),
                  visits_.empty() ? i64{1} : visits_.rbegin()->first);
}

i64 Probe::best_measured() const {
  i64 best = 0;
  double rate = -1;
  for (const auto& [batch, visit] : visits_) {
    const double now = estimate(batch).rate;
    if (!visit.rates.empty() && now > rate) {
      rate = now;
      best = batch;
    }
  }
  return best;
}

bool Probe::use_fit() const {
  return trusted_ && ended_by_ != "stall";
}

// Did the largest batch miss its prediction from above? Then the curve bends, and nothing is read
// off the fit beyond what was measured.
bool Probe::fell_short() const {
  const i64 largest = visits_.rbegin()->first;
  const auto expected = predictions_.find(largest);
  if (expected == predictions_.end() || visits_.rbegin()->second.rates.empty()) {
    return false;
  }
  const Estimate now = estimate(largest);
  return now.rate + kDeviations * now.error < (1 - kFellShort) * expected->second;
}

// What a share is taken of: the maximum of the fitted curve over the batches that may be used where
// the curve is known, otherwise of the measured points after pooling. Never a raw maximum, which is
// a lucky draw.
Probe::Estimate Probe::reference(bool measured_only) const {
  const std::vector<CurvePoint> points = curve_points();
  if (points.empty()) {
    return {};
  }
  const std::vector<double> rates = unimodal_rates(points);
  const double most = *std::max_element(rates.begin(), rates.end());
  double precision = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (rates[i] > 0.999 * most) {
      const double error = std::max(1e-4, points[i].error);
      precision += 1 / (error * error);
    }
  }
  const Estimate measured{.rate = most, .error = most / std::sqrt(precision)};
  if (measured_only || !use_fit()) {
    return measured;
  }
  double peak = double(top());
  if (fell_short()) {
    peak = points.back().batch;
  }
  if (fit_.q > 0) {
    peak = std::clamp(std::sqrt(fit_.a / fit_.q), double(grid_.front()), peak);
  }
  double rate = fit_.rate(peak);
  if (const double bound = bound_rate(i64(peak)); bound > 0) {
    rate = std::min(rate, bound);
  }
  // Where the curve is not quite of that form, the points near the top speak for themselves.
  const bool beyond = peak > 1.1 * points.back().batch;
  if (!beyond && std::abs(rate / most - 1) > 0.02) {
    return measured;
  }
  const double error = std::max(fit_.relative_error, 0.003) / std::sqrt(double(fit_.points));
  return {.rate = rate, .error = rate * error};
}

// Smallest batch at which the fit reaches `rate`.
i64 Probe::needed_batch(double rate) const {
  i64 low = grid_.front();
  i64 high = top();
  if (fit_.q > 0) {
    high = std::clamp(i64(std::sqrt(fit_.a / fit_.q)), low, high);
  }
  while (low < high) {
    const i64 middle = low + (high - low) / 2;
    if (fit_.rate(double(middle)) >= rate) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The batch from here to a seventh more that kernels like best: most factors of two.
i64 Probe::friendly(i64 batch) const {
  const i64 most = std::min(i64(double(batch) * kFriendlyReach), top());
  const i64 unit = batch > 8 ? 8 : 1;
  i64 best = std::min((batch + unit - 1) / unit * unit, top());
  for (i64 factor = unit; factor <= most; factor *= 2) {
    const i64 up = (batch + factor - 1) / factor * factor;
    if (up <= most && power_of_two_in(up) > power_of_two_in(best)) {
      best = up;
    }
  }
  return best;
}

// Does the batch give the share of the best that was asked for, with confidence?
Answer Probe::good_enough(i64 batch, const Estimate& best) const {
  const Estimate now = estimate(batch);
  if (best.rate <= 0 || now.rate <= 0) {
    return Answer::kNo;
  }
  const double share = now.rate / best.rate;
  const double error = share * std::hypot(now.error / now.rate, best.error / best.rate);
  const double asked = options_.knee_share;
  const double inside = 1 - kInside * (1 - asked);
  const double middle = 0.5 * (asked + inside);
  if (share - kDeviations * error >= (share >= inside ? asked : middle)) {
    return Answer::kYes;
  }
  if (share < middle || share + kDeviations * error < inside) {
    return Answer::kNo;
  }
  return Answer::kUnknown;
}

i64 Probe::answer(const Estimate& best) const {
  const double middle = options_.knee_share + 0.5 * (1 - kInside) * (1 - options_.knee_share);
  i64 fallback = 0;
  double highest = -1;
  for (const auto& [batch, visit] : visits_) {
    if (visit.rates.empty() && fallback > 0) {
      continue;
    }
    const Estimate now = estimate(batch);
    const Answer good = good_enough(batch, best);
    if (!visit.rates.empty() &&
        (good == Answer::kYes || (good == Answer::kUnknown && now.rate >= middle * best.rate))) {
      return batch;
    }
    const double lower = now.rate - kDeviations * now.error;
    if (lower > highest) {
      highest = lower;
      fallback = batch;
    }
  }
  return fallback;
}

// A batch that was not measured and may be a better answer than any that was.
std::optional<i64> Probe::wanted_batch(const Estimate& best) const {
  if (refinements_ >= kMostRefinements || options_.exhaustive) {
    return std::nullopt;
  }
  const double inside = 1 - kInside * (1 - options_.knee_share);
  i64 good = 0;
  i64 below = 0;
  for (const auto& [batch, visit] : visits_) {
    if (visit.rates.empty()) {
      continue;
    }
    if (good_enough(batch, best) != Answer::kNo) {
      good = batch;
      break;
    }
    below = batch;
  }
  if (use_fit()) {
    const i64 wanted = friendly(needed_batch(inside * best.rate));
    const bool known = visits_.find(wanted) != visits_.end();
    if (!known && (good == 0 || 6 * wanted <= 5 * good)) {
      return wanted;
    }
  }
  // A peak between two measured batches: look beside the best one.
  const i64 peak = best_measured();
  const auto after = visits_.upper_bound(peak);
  if (after != visits_.end() && !after->second.rates.empty() && 10 * after->first > 18 * peak &&
      estimate(after->first).rate < 0.98 * estimate(peak).rate) {
    const i64 beside = friendly(i64(std::sqrt(double(peak) * double(after->first))));
    if (beside > peak && beside < after->first) {
      return beside;
    }
  }
  if (good == 0 || below == 0 || 10 * good < 18 * below) {
    return std::nullopt;
  }
  // Between two neighbours step time is taken as affine: no higher than that, for it is convex.
  const double low_seconds = double(below) / estimate(below).rate;
  const double high_seconds = double(good) / estimate(good).rate;
  const i64 middle = friendly(i64(std::sqrt(double(below) * double(good))));
  const double at = double(middle - below) / double(good - below);
  const double seconds = low_seconds + at * (high_seconds - low_seconds);
  const bool promising = double(middle) / seconds >= inside * best.rate;
  if (!promising || middle <= below || middle >= good || on_grid(middle) != middle ||
      visits_.find(middle) != visits_.end()) {
    return std::nullopt;
  }
  return middle;
}

// Above the knee: refine, then add windows where the answer is open.
void Probe::settle() {
  if (by_bandwidth_ && (!use_fit() || fell_short()) && at_ + 1 < grid_.size() &&
      visits_.rbegin()->first < grid_[at_ + 1]) {
    // The fit that told what lies beyond did not hold: see for ourselves.
    by_bandwidth_ = false;
    log_decision("settle", "up", grid_[at_ + 1]);
    windows_wanted_ = kRefineWindows;
    if (go_to(grid_[at_ + 1], "the fit did not hold")) {
      ++at_;
      ended_by_.clear();
      phase_ = Phase::kClimb;
      return;
    }
    mark("budget");
  }
  const Estimate best = reference();
  if (const std::optional<i64> wanted = wanted_batch(best)) {
    ++refinements_;
    if (here_ > 0) {
      log_decision("settle", "refine", *wanted);
    }
    windows_wanted_ = kRefineWindows;
    if (go_to(*wanted, "the knee may lie here")) {
      return;
    }
    mark("budget");
    // As far towards it as the budget goes.
    const i64 most = visits_.rbegin()->first;
    for (i64 nearer = on_grid(*wanted * 3 / 4); 3 * nearer > 4 * most;
         nearer = on_grid(nearer * 3 / 4)) {
      windows_wanted_ = 1;
      if (go_to(nearer, "as far towards the knee as the budget goes")) {
        return;
      }
    }
    meter();
    return;
  }
  i64 open = 0;
  for (const auto& [batch, visit] : visits_) {
    const Answer good = visit.rates.empty() ? Answer::kNo : good_enough(batch, best);
    if (good == Answer::kYes) {
      break;
    }
    if (good == Answer::kUnknown) {
      open = batch;
      break;
    }
  }
  if (open == 0 && use_fit() && refinements_ < kMostRefinements && !options_.exhaustive) {
    // Would the answer be much smaller if nothing lay beyond what was measured? Then look.
    const i64 far = std::min(top(), 2 * answer(best));
    if (10 * far > 15 * visits_.rbegin()->first &&
        10 * answer(best) > 15 * answer(reference(true))) {
      ++refinements_;
      log_decision("settle", "beyond", far);
      windows_wanted_ = kRefineWindows;
      if (go_to(far, "what the fit says of larger batches decides the answer")) {
        return;
      }
    }
  }
  if (open == 0 || turns_ >= kMostTurns || options_.exhaustive) {
    meter();
    return;
  }
  // A B B A between the open batch and the best, so that drift cancels; the noisier one first.
  const i64 rival = best_measured();
  const Estimate mine = estimate(open);
  const Estimate theirs = estimate(rival);
  i64 next = open;
  if (!use_fit() && rival != open) {
    const double ratio = (mine.error / mine.rate) / (theirs.error / theirs.rate);
    const bool turn_of_rival = turns_ % 4 == 1 || turns_ % 4 == 2;
    next = ratio > 1.5 ? open : ratio < 1 / 1.5 ? rival : turn_of_rival ? rival : open;
    if (int(visits_[next].rates.size()) >= kMostWindows) {
      next = next == open ? rival : open;
    }
  }
  const auto have = int(visits_[next].rates.size());
  if (have >= kMostWindows) {
    meter();
    return;
  }
  ++turns_;
  windows_wanted_ = std::min(have + 2, kMostWindows);
  if (!go_to(next, "the answer is still open")) {
    mark("budget");
    meter();
  }
}

}  // namespace penstock::tuner
