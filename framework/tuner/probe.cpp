#include "framework/tuner/probe.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock::tuner {
namespace {

constexpr double kAgree = 0.03;  // warm-up ends when three steps agree within this
constexpr int kMostWarmUps = 20;
constexpr double kWarmSeconds = 0.002;  // shorter steps are timed together
constexpr double kWindowSeconds = 0.02;
constexpr int kWindowSteps = 4;
constexpr double kLongStep = 0.5;      // a window is one step where it takes this long
constexpr double kMeterSeconds = 0.3;  // least time over which a bandwidth meter says anything
constexpr int kFirstWindows = 3;       // at the first batch, to learn the noise
constexpr int kWindows = 2;            // at the others, before the first decision
constexpr double kSlowStep = 0.1;      // one window is enough to begin with where steps are long
constexpr int kMostClimbWindows = 8;   // to decide whether to go on up
constexpr int kMostRejected = 8;       // windows in a row in which the clock moved
constexpr double kClockMoved = 0.02;
constexpr double kWorthDoubling = 0.03;  // what a doubling, or two, must bring
constexpr double kHighStall = 0.10;
constexpr double kHighLaunch = 0.30;
constexpr double kLowDram = 0.40;
constexpr double kSteepBound = 1.7;  // the bound still grows this much per doubling: far below

i64 on_grid(i64 batch) {
  return batch >= 8 ? batch / 8 * 8 : batch;
}

}  // namespace

const char* name_of(ProbeKind kind) {
  switch (kind) {
    case ProbeKind::kWarmUp: return "warm-up";
    case ProbeKind::kWindow: return "window";
    case ProbeKind::kDram: return "dram";
  }
  return "";
}

// Everything that limits the batch, the tightest first.
std::vector<Probe::Cap> Probe::caps(const ProbeOptions& options) {
  std::vector<Cap> caps;
  caps.push_back({options.largest_fitting, "memory"});
  if (options.dataset_size > 0) {
    caps.push_back({options.dataset_size, "data set"});
  }
  if (options.ring_slots > 0) {
    caps.push_back({options.ring_slots / 2, "loader.max_bytes"});
  }
  if (options.auto_max) {
    caps.push_back({*options.auto_max, "auto_batch.max"});
  }
  if (options.hold) {
    caps.push_back({options.configured_batch, "held batch"});
  } else {
    if (options.max_scale) {
      const double scaled = *options.max_scale * double(options.configured_batch);
      caps.push_back({i64(std::min(scaled, 9e15)), "auto_batch.max_scale"});
    }
    if (options.remaining_samples > 0 && options.min_steps > 0) {
      caps.push_back(
          {std::max(options.remaining_samples / options.min_steps, options.configured_batch),
           "optimizer steps"});
    }
  }
  std::stable_sort(caps.begin(), caps.end(),
                   [](const Cap& x, const Cap& y) { return x.batch < y.batch; });
  return caps;
}

std::vector<i64> probe_grid(const ProbeOptions& options) {
  const i64 cap = Probe::caps(options).front().batch;
  std::vector<i64> grid;
  const i64 smallest = std::max<i64>(1, options.smallest);
  if (cap < smallest) {
    return grid;
  }
  // From 8 on, lower where so little fits that the curve would have too few points.
  i64 batch = 1;
  while (2 * batch <= std::min<i64>(8, cap / 8)) {
    batch *= 2;
  }
  while (batch < smallest) {
    batch *= 2;
  }
  for (; batch <= cap; batch *= 2) {
    grid.push_back(batch);
  }
  const i64 top = options.hold ? cap : std::max(on_grid(cap), smallest);
  if (grid.empty() || 10 * top > 11 * grid.back()) {
    grid.push_back(top);
  }
  if (options.exhaustive && options.configured_batch >= grid.front() &&
      options.configured_batch <= cap) {
    grid.push_back(options.configured_batch);
    std::sort(grid.begin(), grid.end());
    grid.erase(std::unique(grid.begin(), grid.end()), grid.end());
  }
  return grid;
}

Probe::Probe(ProbeOptions options) : options_(std::move(options)) {
  if (options_.configured_batch < 1 || !(options_.knee_share > 0 && options_.knee_share < 1) ||
      !(options_.budget_seconds > 0)) {
    throw ConfigError(
        format("probe: configured batch {}, knee share {} and budget {} s should be "
               "at least 1, between 0 and 1, and above 0",
               options_.configured_batch, options_.knee_share, options_.budget_seconds));
  }
  options_.smallest = std::max<i64>(1, options_.smallest);
  if (options_.largest_fitting < options_.smallest) {
    std::string needs;
    OutOfMemory::Figures figures;
    if (!options_.plans.empty()) {
      figures.requested = options_.plans.front().planned_bytes;
      needs = format(": batch {} needs {} bytes", options_.plans.front().batch, figures.requested);
    }
    if (options_.free_bytes > 0) {
      figures.available = options_.free_bytes;
      needs += format("{} {} bytes may be used", needs.empty() ? ":" : ",", options_.free_bytes);
    }
    throw OutOfMemory(format("auto-batch: not even batch {} fits in memory{}; use a smaller model "
                             "or lower precision, model.recompute: blocks, or free memory on the "
                             "device",
                             options_.smallest, needs),
                      figures);
  }
  cap_ = caps(options_).front();
  grid_ = probe_grid(options_);
  if (grid_.empty()) {
    throw ConfigError(
        format("auto-batch: {} allows batches up to {}, the smallest that can be "
               "trained is {}; raise {}",
               cap_.key, cap_.batch, options_.smallest, cap_.key));
  }
  check(std::is_sorted(options_.plans.begin(), options_.plans.end(),
                       [](const BatchPlan& x, const BatchPlan& y) { return x.batch < y.batch; }),
        "probe: the plans should ascend by batch");
  log_start();
  windows_wanted_ = kFirstWindows;
  go_to(grid_.front(), "the smallest batch of the grid");
}

const ProbeRequest& Probe::ask() const {
  check(!done_, "probe: asked after it was done");
  return request_;
}

const ProbeResult& Probe::result() const {
  check(done_, "probe: the result was read before it was done");
  return result_;
}

std::vector<Record> Probe::take_records() {
  return std::exchange(records_, {});
}

// ---- measuring -------------------------------------------------------------------------------

double Probe::budget() const {
  if (first_rate_ <= 0 || options_.remaining_samples <= 0) {
    return options_.budget_seconds;
  }
  const double run = double(options_.remaining_samples) / first_rate_;
  return std::min(options_.budget_seconds, options_.budget_share * run);
}

double Probe::step_guess(i64 batch) const {
  if (fit_.points >= 2) {
    return fit_.seconds(double(batch));
  }
  double guess = 0;
  for (const auto& [known, visit] : visits_) {
    double step = 0;
    if (!visit.rates.empty()) {
      step = double(known) / median(visit.rates);
    } else if (!visit.warm.empty()) {
      step = visit.warm.back();
    }
    if (step > 0) {
      // While launches fill the step, it does not grow with the batch.
      const double growing = 1 - std::clamp(visit.launch.value_or(0), 0.0, 0.8);
      guess = step * (1 + growing * std::max(0.0, double(batch) / double(known) - 1));
    }
  }
  return guess;
}

bool Probe::affordable(i64 batch, int steps) const {
  const double guess = step_guess(batch);
  const double after = used_ + std::max(steps * guess, guess > 0 ? kWindowSeconds : 0.0);
  return after <= options_.budget_seconds &&
         (after <= budget() || steps_ + steps <= options_.budget_steps);
}

// Measures a batch next; false when the budget does not allow it.
bool Probe::go_to(i64 batch, std::string why) {
  const bool first = visits_.find(batch) == visits_.end();
  if (!visits_.empty() && !affordable(batch, first ? 3 + kWindowSteps : 1 + kWindowSteps)) {
    return false;
  }
  if (first && fit_.points >= 2) {
    predictions_[batch] = fit_.rate(double(batch));
  }
  Visit& visit = visits_[batch];
  if (here_ != batch) {
    visit.warm.clear();
    visit.cold = true;
  }
  here_ = batch;
  request_.batch = batch;
  request_.why = std::move(why);
  ask_next();
  return true;
}

void Probe::ask_next() {
  const Visit& visit = visits_[here_];
  const double step = step_guess(here_);
  if (visit.cold) {
    request_.kind = ProbeKind::kWarmUp;
    request_.steps = 1;
    request_.min_seconds = kWarmSeconds;
  } else {
    request_.kind = phase_ == Phase::kMeter ? ProbeKind::kDram : ProbeKind::kWindow;
    request_.steps = step > kLongStep ? 1 : kWindowSteps;
    request_.min_seconds = phase_ == Phase::kMeter ? kMeterSeconds : kWindowSeconds;
  }
}

bool Probe::warm_enough(const Visit& visit) const {
  const std::size_t n = visit.warm.size();
  if (n >= std::size_t(kMostWarmUps)) {
    return true;
  }
  if (n < 3) {
    return false;
  }
  const auto last = visit.warm.end() - 3;
  const auto [low, high] = std::minmax_element(last, visit.warm.end());
  // Where single steps scatter more than that, three that agree would be luck.
  const double tolerance = std::max(kAgree, 4 * noise());
  if (*high <= *low * (1 + tolerance)) {
    return true;
  }
  // Scatter without a trend is noise: the last three are no faster than the three before.
  return n >= 8 && median({last, visit.warm.end()}) > 0.97 * median({last - 3, last});
}

void Probe::tell(const ProbeObservation& raw) {
  check(!done_, "probe: told after it was done");
  check(raw.batch == request_.batch, "probe: told of batch {}, asked for batch {}", raw.batch,
        request_.batch);
  ProbeObservation seen = raw;
  for (double* value : {&seen.seconds, &seen.seconds_used_total}) {
    *value = std::isfinite(*value) ? rounded(*value) : 0.0;
  }
  for (std::optional<double>* share : {&seen.dram_share, &seen.ledger_share, &seen.launch_share,
                                       &seen.stall_share, &seen.clock_change}) {
    if (*share && std::isfinite(**share)) {
      *share = rounded(**share);
    } else {
      share->reset();
    }
  }
  ++sequence_;
  Record record("probe.seen");
  record.set("sequence", sequence_).set("batch", seen.batch).set("kind", name_of(request_.kind));
  record.set("steps", seen.steps).set("seconds", seen.seconds);
  record.set("used", seen.seconds_used_total).set("failed_memory", seen.failed_memory);
  const std::pair<const char*, const std::optional<double>*> shares[] = {
      {"dram_share", &seen.dram_share},
      {"ledger_share", &seen.ledger_share},
      {"launch_share", &seen.launch_share},
      {"stall_share", &seen.stall_share},
      {"clock_change", &seen.clock_change}};
  for (const auto& [key, value] : shares) {
    if (*value) {
      record.set(key, **value);
    }
  }
  records_.push_back(std::move(record));
  used_ = std::max(used_, seen.seconds_used_total);
  if (seen.failed_memory) {
    ++failed_;
    lose_memory();
    return;
  }
  Visit& visit = visits_[here_];
  if (seen.steps <= 0 || seen.seconds <= 0) {
    // Not a duration of a monotonic clock: no evidence about anything.
    if (++visit.rejected > kMostRejected) {
      mark("unstable: windows without a duration");
      finish();
    }
    return;
  }
  steps_ += seen.steps;
  if (request_.kind == ProbeKind::kWarmUp) {
    visit.warm.push_back(seen.seconds / seen.steps);
    visit.discarded += seen.steps;
    if (warm_enough(visit)) {
      visit.cold = false;
      ask_next();
    } else if (!affordable(here_, 1)) {
      mark("budget");
      finish();
    }
    return;
  }
  take_window(seen);
}

void Probe::take_window(const ProbeObservation& seen) {
  Visit& visit = visits_[here_];
  if (seen.clock_change && std::abs(*seen.clock_change) > kClockMoved) {
    if (++visit.rejected <= kMostRejected) {
      if (!affordable(here_, request_.steps)) {
        mark("budget");
        finish();
      }
      return;  // once more
    }
    mark("unstable: the clock moved in most windows");
  }
  visit.rejected = 0;
  const double rate = double(seen.batch) * seen.steps / seen.seconds;
  visit.rates.push_back(rate);
  if (first_rate_ <= 0) {
    first_rate_ = rate;
  }
  if (seen.dram_share) {
    visit.dram = seen.dram_share;
    visit.metered = visit.metered || seen.seconds >= kMeterSeconds;
    if (seen.ledger_share && *seen.ledger_share > 0.02 && seen.seconds >= kMeterSeconds) {
      traffic_ratio_ = std::clamp(*seen.dram_share / *seen.ledger_share, 0.25, 4.0);
    }
  }
  if (seen.launch_share) {
    visit.launch = seen.launch_share;
  }
  if (seen.stall_share) {
    visit.stall = seen.stall_share;
  }
  refit(here_);
  check_bound(here_);
  if (int(visit.rates.size()) < windows_wanted_) {
    if (affordable(here_, request_.steps)) {
      ask_next();
      return;
    }
    mark("budget");
    finish();
    return;
  }
  decide();
}

// Not foreseen by the plan, so caused from outside: this batch and all above it are out.
void Probe::lose_memory() {
  const i64 lost = here_;
  mark(format("batch {} ran out of memory for a cause outside", lost));
  const auto none = [&] {
    throw OutOfMemory(format("auto-batch: batch {}, the smallest, ran out of memory although the "
                             "plan fits; another process took it: free memory on the device",
                             lost),
                      {});
  };
  visits_.erase(visits_.lower_bound(lost), visits_.end());
  std::erase_if(grid_, [lost](i64 batch) { return batch >= lost; });
  std::erase_if(climbed_, [lost](i64 batch) { return batch >= lost; });
  cap_ = {lost - 1, "memory"};
  here_ = 0;
  refit(0);
  if (visits_.empty()) {
    const i64 below = lost / 2;
    if (below < options_.smallest) {
      none();
    }
    // The grid begins higher than what fits now.
    grid_.insert(grid_.begin(), below);
    at_ = 0;
    windows_wanted_ = kFirstWindows;
    phase_ = Phase::kClimb;
    go_to(below, "the batch above ran out of memory");
    return;
  }
  if (climbed_.empty() || visits_.begin()->second.rates.empty()) {
    finish();
    return;
  }
  start_settling("memory");
}

// ---- deciding --------------------------------------------------------------------------------

void Probe::decide() {
  switch (phase_) {
    case Phase::kClimb: climb(); return;
    case Phase::kSettle: settle(); return;
    case Phase::kMeter: meter(); return;
  }
}

void Probe::log_decision(const char* at, const std::string& verdict, i64 to) {
  const Estimate now = estimate(here_);
  const Visit& visit = visits_[here_];
  Record record("probe.decision");
  record.set("sequence", sequence_).set("at", at).set("batch", here_).set("to", to);
  record.set("rate", rounded(now.rate)).set("error", rounded(now.error));
  record.set("windows", visit.rates.size()).set("bound", rounded(bound_rate(here_)));
  record.set("a", rounded(fit_.a)).set("b", rounded(fit_.b)).set("c", rounded(fit_.c));
  record.set("q", rounded(fit_.q)).set("trusted", trusted_);
  const std::pair<const char*, const std::optional<double>*> shares[] = {
      {"dram_share", &visit.dram}, {"launch_share", &visit.launch}, {"stall_share", &visit.stall}};
  for (const auto& [key, value] : shares) {
    if (*value) {
      record.set(key, **value);
    }
  }
  record.set("verdict", verdict);
  records_.push_back(std::move(record));
}

// At a batch of the grid that has its windows: on, or enough?
void Probe::climb() {
  const i64 batch = here_;
  const Visit& visit = visits_[batch];
  if (climbed_.empty() || climbed_.back() != batch) {
    climbed_.push_back(batch);
  }
  const Estimate now = estimate(batch);
  const std::size_t count = climbed_.size();
  const auto more_windows = [&](const char* why) {
    if (int(visit.rates.size()) >= kMostClimbWindows || !affordable(batch, request_.steps)) {
      return false;
    }
    windows_wanted_ = int(visit.rates.size()) + 1;
    request_.why = why;
    ask_next();
    return true;
  };
  // Few windows that contradict each other or what was expected: one may be an accident.
  if (visit.rates.size() < 3) {
    const auto [low, high] = std::minmax_element(visit.rates.begin(), visit.rates.end());
    const auto expected = predictions_.find(batch);
    const double scatter = std::max(kAgree, 3 * noise());
    const bool odd =
        *high > *low * (1 + scatter) ||
        (expected != predictions_.end() && std::abs(now.rate / expected->second - 1) > scatter);
    if (odd && more_windows("the windows disagree with each other or with the prediction")) {
      return;
    }
  }
  // A share of memory traffic that falls while the batch rises, and throughput with it.
  if (count >= 2) {
    const i64 below = climbed_[count - 2];
    const Visit& before = visits_[below];
    if (visit.dram && before.dram && *visit.dram < 0.9 * *before.dram &&
        now.rate < 0.97 * estimate(below).rate) {
      mark(
          format("batch {} is slower than {} and moves less memory: a shape that the kernels do "
                 "not like",
                 batch, below));
    }
  }
  if (at_ + 1 >= grid_.size()) {
    start_settling(cap_.key);
    return;
  }
  std::size_t next = at_ + 1;
  if (!options_.exhaustive) {
    if (visit.stall && *visit.stall > kHighStall) {
      mark("input-bound: the loader was slower than the step");
      start_settling("stall");
      return;
    }
    if (count >= 2) {
      const i64 below = climbed_[count - 2];
      const double doublings = std::log2(double(batch) / double(below));
      const double before = estimate(below).rate;
      const double here_bound = bound_rate(batch);
      const double ahead = bound_rate(2 * batch);
      if (options_.use_bandwidth && here_bound > 0 && ahead > 0) {
        const double moved = (now.rate / here_bound) / (before / bound_rate(below)) - 1;
        // What lies beyond is read off the fit; without one, it must be little.
        const bool known = use_fit() || bound_rate(top()) < (1 + kWorthDoubling) * here_bound;
        if (known && std::abs(moved) < kWorthDoubling * doublings &&
            ahead < (1 + kWorthDoubling) * here_bound) {
          by_bandwidth_ = true;
          start_settling("saturated");
          return;
        }
      }
    }
    // Two doublings back, or the nearest below that.
    i64 two_below = 0;
    for (const i64 candidate : climbed_) {
      if (4 * candidate <= batch) {
        two_below = candidate;
      }
    }
    if (two_below > 0) {
      const Estimate low = estimate(two_below);
      const double ratio = now.rate / low.rate;
      const double error = ratio * std::hypot(now.error / now.rate, low.error / low.rate);
      const Answer worth = at_least(ratio, error, 1 + kWorthDoubling);
      if (worth == Answer::kUnknown && more_windows("two doublings brought about 3 %")) {
        return;
      }
      if (worth == Answer::kNo || (worth == Answer::kUnknown && ratio < 1 + kWorthDoubling)) {
        start_settling("saturated");
        return;
      }
    }
    // Far below the knee every second batch is enough: launches fill the step while memory idles,
    // or the bound itself is still nearly proportional to the batch.
    if (options_.use_bandwidth && next + 2 < grid_.size()) {
      const bool launches = visit.launch.value_or(0) > kHighLaunch && visit.dram &&
                            *visit.dram < kLowDram && visit.stall.value_or(0) < kHighStall;
      const double here_bound = bound_rate(batch);
      const bool steep = here_bound > 0 && bound_rate(2 * batch) > kSteepBound * here_bound;
      next += launches || steep ? 1 : 0;
    }
    // A curve that is known while the budget runs out: straight on.
    if (next == at_ + 1 && next + 1 < grid_.size() && use_fit() && 4 * used_ > budget() &&
        fit_.elasticity(double(grid_[next])) > 0.2) {
      ++next;
    }
  }
  log_decision("climb", "up", grid_[next]);
  windows_wanted_ = step_guess(grid_[next]) > kSlowStep ? 1 : kWindows;
  if (!go_to(grid_[next], "throughput still rises")) {
    mark("budget");
    start_settling("budget");
    return;
  }
  at_ = next;
}

void Probe::start_settling(std::string ended_by) {
  ended_by_ = std::move(ended_by);
  if (here_ > 0) {
    log_decision("climb", ended_by_, here_);
  }
  phase_ = Phase::kSettle;
  settle();
}

// Bandwidth at the contenders, where the windows so far were too short for a meter.
void Probe::meter() {
  phase_ = Phase::kMeter;
  if (options_.dram_meter) {
    for (const i64 batch : {answer(reference()), best_measured()}) {
      const auto found = visits_.find(batch);
      if (found == visits_.end() || found->second.metered) {
        continue;
      }
      const double step = std::max(1e-6, step_guess(batch));
      if (!affordable(batch, 3 + int(std::ceil(kMeterSeconds / step)))) {
        continue;
      }
      found->second.metered = true;  // asked once, whatever the meter says
      windows_wanted_ = int(found->second.rates.size()) + 1;
      if (go_to(batch, "memory bandwidth at a contender")) {
        return;
      }
    }
  }
  finish();
}

void Probe::finish() {
  done_ = true;
  build_result();
}

}  // namespace penstock::tuner
