#include "framework/tuner/probe.h"

#include <algorithm>
#include <cmath>

namespace penstock::tuner {
namespace {

constexpr int kFirstWindows = 3;
constexpr int kMostWindows = 24;
constexpr int kMostWarmUps = 12;
constexpr double kAgree = 0.03;       // warm-up steps agree within
constexpr double kWindowSeconds = 0.02;
constexpr int kWindowSteps = 4;
constexpr double kLongStep = 0.5;     // one step is a window
constexpr double kInside = 0.035;     // the share left on the table inside, for a 5 % rule outside
constexpr double kConfidence = 1.64;

double rate_of(i64 batch, double seconds) { return seconds > 0 ? double(batch) / seconds : 0; }

}  // namespace

std::vector<i64> probe_grid(i64 capacity, i64 configured) {
  std::vector<i64> grid;
  for (i64 b = std::max<i64>(1, std::min<i64>(8, capacity)); b <= capacity; b *= 2) {
    grid.push_back(b);
    if (b > capacity / 2) {
      break;
    }
  }
  const i64 top = capacity >= 8 ? capacity / 8 * 8 : capacity;
  // The end of what fits is a candidate only where it is well beyond the last power of two.
  if (!grid.empty() && double(top) > 1.3 * double(grid.back())) {
    grid.push_back(top);
  }
  if (configured >= 1 && configured <= capacity) {
    grid.push_back(configured);
  }
  std::sort(grid.begin(), grid.end());
  grid.erase(std::unique(grid.begin(), grid.end()), grid.end());
  return grid;
}

Probe::Probe(ProbeOptions options) : options_(std::move(options)) {
  check(!options_.candidates.empty(), "probe: no batch fits");
  for (const ProbeCandidate& c : options_.candidates) {
    check(states_.empty() || c.batch > states_.back().candidate.batch, "probe: candidates must ascend");
    states_.push_back({.candidate = c, .warm = {}, .windows = {}, .dram = {}});
  }
  result_.largest = states_.back().candidate.batch;
  records_.push_back(Record("probe_start")
                         .set("configured", options_.configured)
                         .set("largest", result_.largest)
                         .set("candidates", states_.size())
                         .set("budget_seconds", options_.budget_seconds)
                         .set("knee", options_.knee)
                         .set("cap", options_.cap));
  request_ = {ProbeRequest::Kind::kWarmUp, states_[0].candidate.batch, 1};
}

Probe::State& Probe::state(i64 batch) {
  const auto it = std::find_if(states_.begin(), states_.end(),
                               [&](const State& s) { return s.candidate.batch == batch; });
  check(it != states_.end(), "probe: batch {} is no candidate", batch);
  return *it;
}

ProbePoint Probe::point(const State& s) const {
  ProbePoint p;
  p.batch = s.candidate.batch;
  p.planned_bytes = s.candidate.planned_bytes;
  if (!s.windows.empty()) {
    p.seconds = median(s.windows);
    const double mad = median_deviation(s.windows, p.seconds);
    p.error = median_error(mad, s.windows.size());
    // Few windows understate their own spread.
    p.error = std::max(p.error, p.seconds * 0.005 / std::sqrt(double(s.windows.size())));
    p.windows = int(s.windows.size());
  } else if (!s.warm.empty()) {
    p.seconds = *std::min_element(s.warm.begin(), s.warm.end());
    p.error = 0.1 * p.seconds;
    p.cold = true;
  } else {
    return p;
  }
  p.rate = rate_of(p.batch, p.seconds);
  p.lower = rate_of(p.batch, p.seconds + kConfidence * p.error);
  p.upper = rate_of(p.batch, std::max(1e-12, p.seconds - kConfidence * p.error));
  if (s.candidate.bound_seconds > 0 && !result_.bound_broken) {
    p.bound = rate_of(p.batch, s.candidate.bound_seconds);
    p.eta = p.rate / p.bound;
  }
  if (!s.dram.empty()) {
    p.dram_share = median(s.dram);
  }
  return p;
}

void Probe::request_window(i64 batch) {
  const State& s = state(batch);
  double step = 0;
  if (!s.windows.empty()) {
    step = median(s.windows);
  } else if (!s.warm.empty()) {
    step = s.warm.back();
  }
  int steps = kWindowSteps;
  if (step > kLongStep) {
    steps = 1;
  } else if (step > 0) {
    steps = std::clamp(int(std::ceil(kWindowSeconds / step)), kWindowSteps, 2000);
  }
  request_ = {ProbeRequest::Kind::kWindow, batch, steps};
}

void Probe::tell(const ProbeReport& report) {
  check(!done_, "probe: told after its end");
  State& s = state(request_.batch);
  const double step = report.seconds / std::max(1, request_.steps);
  steps_ += request_.steps;
  spent_ = report.spent;
  records_.push_back(Record("probe")
                         .set("kind", request_.kind == ProbeRequest::Kind::kWarmUp ? "warm-up" : "window")
                         .set("batch", request_.batch)
                         .set("steps", request_.steps)
                         .set("seconds", rounded(report.seconds))
                         .set("spent", rounded(report.spent))
                         .set("dram_share", report.dram_share ? rounded(*report.dram_share) : NAN)
                         .set("launch_share", report.launch_share ? rounded(*report.launch_share) : NAN)
                         .set("clock_moved", report.clock_moved)
                         .set("out_of_memory", report.out_of_memory));
  if (report.out_of_memory) {
    // Not foreseen by the plan, so caused from outside: nothing from here up is a candidate.
    const auto it = std::find_if(states_.begin(), states_.end(), [&](const State& c) {
      return c.candidate.batch >= request_.batch;
    });
    states_.erase(it, states_.end());
    options_.cap = "memory taken by others";
    if (states_.empty()) {
      throw OutOfMemory("auto-batch: not even the smallest batch fits any more; something else has taken "
                        "the memory",
                        {});
    }
    at_ = std::min(at_, states_.size() - 1);
    if (phase_ == Phase::kUp) {
      stop_ = "memory ran out for a cause outside of this process";
      after_climb();
    } else {
      finish(stop_);
    }
    return;
  }
  if (request_.kind == ProbeRequest::Kind::kWarmUp) {
    s.warm.push_back(step);
  } else if (!report.clock_moved) {
    s.windows.push_back(step);
  } else {
    s.warm.push_back(step);  // counts against the number of tries only
  }
  if (report.dram_share) {
    s.dram.push_back(*report.dram_share);
  }
  advance();
}

void Probe::advance() {
  const bool over = spent_ > options_.budget_seconds && steps_ >= options_.budget_steps;
  if (phase_ == Phase::kUp || phase_ == Phase::kRefine) {
    State& s = phase_ == Phase::kUp ? states_[at_] : state(request_.batch);
    if (!s.ready) {
      const std::size_t n = s.warm.size();
      bool agree = n >= 3;
      if (agree) {
        const auto [low, high] = std::minmax({s.warm[n - 1], s.warm[n - 2], s.warm[n - 3]});
        agree = high <= low * (1 + kAgree);
      }
      // Three long steps are warm whatever they say: waiting would cost more than it tells.
      const bool slow = n >= 2 && s.warm.back() > kLongStep;
      if (!agree && !slow && int(n) < kMostWarmUps && !over) {
        request_ = {ProbeRequest::Kind::kWarmUp, s.candidate.batch, 1};
        return;
      }
      s.ready = true;
    }
    if (int(s.windows.size()) < kFirstWindows && int(s.warm.size()) < 3 * kMostWarmUps && !over) {
      request_window(s.candidate.batch);
      return;
    }
    if (phase_ == Phase::kRefine) {
      phase_ = Phase::kDecide;
    }
  }
  if (over) {
    result_.budget = true;
    if (phase_ == Phase::kUp) {
      stop_ = "the budget ended";
    }
    finish(stop_);
    return;
  }
  if (phase_ == Phase::kUp) {
    const ProbePoint p = point(states_[at_]);
    if (p.bound > 0 && p.rate > 1.02 * p.bound) {
      result_.bound_broken = true;  // the data come from caches; the bound says nothing here
    }
    if (climb_ends(stop_)) {
      after_climb();
      return;
    }
    ++at_;
    request_ = {ProbeRequest::Kind::kWarmUp, states_[at_].candidate.batch, 1};
    return;
  }
  // Deciding: contenders take turns until the answer is known.
  if (!turn_.empty()) {
    const i64 next = turn_.back();
    turn_.pop_back();
    request_window(next);
    return;
  }
  std::vector<i64> unsure;
  const std::optional<i64> knee = knee_of(&unsure);
  if (!unsure.empty()) {
    // A B B A, so that a drift counts for both alike.
    turn_.assign(unsure.begin(), unsure.end());
    turn_.insert(turn_.end(), unsure.rbegin(), unsure.rend());
    const i64 next = turn_.back();
    turn_.pop_back();
    request_window(next);
    return;
  }
  // Between the knee and the candidate below it may lie a smaller batch that does.
  if (knee && refinements_ < 2) {
    const auto it = std::find_if(states_.begin(), states_.end(),
                                 [&](const State& s) { return s.candidate.batch == *knee; });
    if (it != states_.begin()) {
      const i64 below = std::prev(it)->candidate.batch;
      i64 middle = (below + *knee) / 2;
      middle = middle >= 8 ? (middle + 7) / 8 * 8 : middle;
      if (double(*knee) > 1.4 * double(below) && middle > below && middle < *knee) {
        ++refinements_;
        State refined;
        refined.candidate = {.batch = middle};
        if (options_.bound_per_sample > 0) {
          refined.candidate.bound_seconds =
              options_.bound_fixed + options_.bound_per_sample * double(middle);
        }
        // Memory is monotone in the batch to within what the plan says of its neighbour.
        refined.candidate.planned_bytes = it->candidate.planned_bytes;
        states_.insert(it, refined);
        phase_ = Phase::kRefine;
        request_ = {ProbeRequest::Kind::kWarmUp, middle, 1};
        return;
      }
    }
  }
  finish(stop_);
}

bool Probe::climb_ends(std::string& why) const {
  if (at_ + 1 >= states_.size()) {
    why = options_.cap.empty() ? "no larger batch is a candidate" : options_.cap;
    return true;
  }
  const ProbePoint now = point(states_[at_]);
  // The last point at no more than half of this batch, and the one before it.
  const auto half_of = [&](double batch) -> std::optional<ProbePoint> {
    std::optional<ProbePoint> found;
    for (std::size_t i = 0; i < at_; ++i) {
      const ProbePoint p = point(states_[i]);
      if (double(p.batch) <= batch / 1.9 && p.windows > 0) {
        found = p;
      }
    }
    return found;
  };
  const auto one = half_of(double(now.batch));
  if (!one) {
    return false;
  }
  // The bandwidth's word: the ceilings allow no more, and the step already lives from them.
  const State& next = states_[at_ + 1];
  if (options_.use_bandwidth && now.bound > 0 && one->eta > 0 && next.candidate.bound_seconds > 0) {
    const double next_bound = rate_of(next.candidate.batch, next.candidate.bound_seconds);
    const double grown = double(next.candidate.batch) / double(now.batch);
    if (std::fabs(now.eta / one->eta - 1) < 0.03 && next_bound < (1 + 0.03 * grown / 2) * now.bound &&
        now.eta > 0.5) {
      why = "neither the share of what the bandwidth and the matrix units allow nor that limit rises "
            "any more";
      return true;
    }
  }
  const auto two = half_of(double(one->batch));
  if (two && now.rate < 1.03 * one->rate && one->rate < 1.03 * two->rate) {
    why = "two doublings brought less than 3 %";
    return true;
  }
  if (now.rate < 0.7 * one->rate && two && one->rate < two->rate) {
    why = "throughput falls";
    return true;
  }
  return false;
}

void Probe::after_climb() {
  // States above the last measured one were never tried.
  while (!states_.empty() && states_.back().windows.empty() && states_.back().warm.empty()) {
    states_.pop_back();
  }
  phase_ = Phase::kDecide;
  turn_.clear();
  request_.batch = states_.front().candidate.batch;
  advance();
}

// The best rate that can be relied on: neighbours support it, or its own lower bound does.
double Probe::reference_rate() const {
  double best = 0;
  double lower = 0;
  for (const State& s : states_) {
    const ProbePoint p = point(s);
    if (p.windows == 0) {
      continue;
    }
    lower = std::max(lower, p.lower);
    best = std::max(best, p.rate);
  }
  // A raw maximum over noisy points is too high; half-way to the best lower bound.
  return 0.5 * (best + lower);
}

std::optional<i64> Probe::knee_of(std::vector<i64>* unsure) const {
  const double needed = (1 - (1 - options_.knee) * kInside / 0.05) * reference_rate();
  i64 best = 0;
  double best_rate = 0;
  for (const State& s : states_) {
    const ProbePoint p = point(s);
    if (p.windows > 0 && p.rate > best_rate) {
      best_rate = p.rate;
      best = p.batch;
    }
  }
  for (const State& s : states_) {
    const ProbePoint p = point(s);
    if (p.windows == 0) {
      continue;
    }
    if (p.lower >= needed) {
      return p.batch;
    }
    if (p.upper >= needed && p.windows < kMostWindows && p.batch != best) {
      // Too close to tell: more windows of it, and of the best.
      if (unsure != nullptr) {
        unsure->push_back(p.batch);
        if (best != 0 && point(const_cast<Probe*>(this)->state(best)).windows < kMostWindows) {
          unsure->push_back(best);
        }
      }
      return std::nullopt;
    }
    if (p.rate >= needed && (p.windows >= kMostWindows || p.batch == best)) {
      return p.batch;
    }
  }
  return best != 0 ? std::optional(best) : std::nullopt;
}

// t(B) = max(c, a + b B): least squares of the relative error, reweighted so that outliers count less;
// the floor c takes the batches below the hinge that fits best.
void Probe::fit() {
  std::vector<ProbePoint> points;
  for (const State& s : states_) {
    const ProbePoint p = point(s);
    if (p.windows > 0) {
      points.push_back(p);
    }
  }
  if (points.size() < 2) {
    return;
  }
  double least = 1e300;
  for (std::size_t hinge = 0; hinge + 2 <= points.size(); ++hinge) {
    double a = 0;
    double b = 0;
    std::vector<double> weight(points.size(), 1);
    for (int round = 0; round < 20; ++round) {
      double sw = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
      for (std::size_t i = hinge; i < points.size(); ++i) {
        const double w = weight[i] / (points[i].seconds * points[i].seconds);
        const auto x = double(points[i].batch);
        sw += w;
        sx += w * x;
        sy += w * points[i].seconds;
        sxx += w * x * x;
        sxy += w * x * points[i].seconds;
      }
      const double d = sw * sxx - sx * sx;
      b = d > 0 ? (sw * sxy - sx * sy) / d : 0;
      a = sw > 0 ? (sy - b * sx) / sw : 0;
      if (a < 0) {
        a = 0;
        b = sxx > 0 ? sxy / sxx : 0;
      }
      b = std::max(b, 0.0);
      for (std::size_t i = hinge; i < points.size(); ++i) {
        const double e = std::fabs((a + b * double(points[i].batch)) / points[i].seconds - 1);
        weight[i] = e <= 0.03 ? 1 : 0.03 / e;
      }
    }
    double c = 0;
    if (hinge > 0) {
      std::vector<double> flat;
      for (std::size_t i = 0; i < hinge; ++i) {
        flat.push_back(points[i].seconds);
      }
      c = median(flat);
    }
    double loss = 0;
    for (const ProbePoint& p : points) {
      const double e = std::fabs(std::max(c, a + b * double(p.batch)) / p.seconds - 1);
      loss += e <= 0.03 ? e * e : 0.03 * (2 * e - 0.03);
    }
    // A floor has to earn its place.
    loss *= hinge > 0 ? 1.2 : 1.0;
    if (loss < least) {
      least = loss;
      result_.a = a;
      result_.b = b;
      result_.c = c;
    }
  }
  result_.fit_holds = true;
  for (const ProbePoint& p : points) {
    const double t = std::max(result_.c, result_.a + result_.b * double(p.batch));
    result_.fit_holds = result_.fit_holds && std::fabs(t / p.seconds - 1) <= 0.10;
  }
  if (result_.b > 0) {
    result_.half_batch = result_.a / result_.b;
    result_.rate_limit = 1 / result_.b;
  }
}

void Probe::finish(const std::string& why) {
  done_ = true;
  phase_ = Phase::kDone;
  result_.stop = why;
  result_.spent = spent_;
  for (const State& s : states_) {
    const ProbePoint p = point(s);
    if (p.seconds > 0) {
      result_.points.push_back(p);
      if (p.rate > result_.best_rate && !p.cold) {
        result_.best_rate = p.rate;
        result_.best = p.batch;
      }
    }
  }
  fit();
  std::optional<i64> knee = knee_of(nullptr);
  if (!knee) {
    // Undecided when the budget ended: the best lower bound so far stands.
    double lower = 0;
    for (const ProbePoint& p : result_.points) {
      if (p.lower > lower) {
        lower = p.lower;
        knee = p.batch;
      }
    }
  }
  result_.batch = knee.value_or(states_.front().candidate.batch);
  if (result_.best == 0) {
    result_.best = result_.batch;
  }
  // What the measurements cannot tell from the knee: lower ends where even the upper bound misses it,
  // the upper end is the best.
  const double needed = options_.knee * reference_rate();
  result_.low = result_.batch;
  for (const ProbePoint& p : result_.points) {
    if (p.upper >= needed && p.windows > 0) {
      result_.low = std::min(result_.low, p.batch);
    }
  }
  result_.high = std::max(result_.batch, result_.best);
  const auto t = [&](double batch) { return std::max(result_.c, result_.a + result_.b * batch); };
  if (result_.b > 0) {
    const auto at_batch = double(result_.batch);
    result_.elasticity = t(at_batch) > 0 ? 1 - result_.b * at_batch / t(at_batch) : 0;
    for (const ProbePoint& p : result_.points) {
      const auto b = double(p.batch);
      if (result_.gain_knee == 0 && t(b) > 0 && 2 * t(b) / t(2 * b) < 1.15) {
        result_.gain_knee = p.batch;
      }
      if (result_.elastic_knee == 0 && t(b) > 0 && 1 - result_.b * b / t(b) < 0.25) {
        result_.elastic_knee = p.batch;
      }
    }
  }
  // Candidates ended while throughput was still rising: the cap is what limits, not the knee.
  const bool at_top = !result_.points.empty() && result_.batch == result_.points.back().batch &&
                      result_.batch == result_.largest;
  result_.capped = at_top && result_.elasticity > 0.1;
  records_.push_back(Record("probe_result")
                         .set("batch", result_.batch)
                         .set("low", result_.low)
                         .set("high", result_.high)
                         .set("best", result_.best)
                         .set("best_rate", rounded(result_.best_rate))
                         .set("half_batch", rounded(result_.half_batch))
                         .set("rate_limit", rounded(result_.rate_limit))
                         .set("elasticity", rounded(result_.elasticity))
                         .set("budget", result_.budget)
                         .set("capped", result_.capped)
                         .set("spent", rounded(result_.spent))
                         .set("stop", result_.stop));
}

std::vector<Record> Probe::take_records() { return std::exchange(records_, {}); }

std::string explain(const ProbeResult& r, i64 configured) {
  const auto rate_at = [&](i64 batch) -> const ProbePoint* {
    for (const ProbePoint& p : r.points) {
      if (p.batch == batch) {
        return &p;
      }
    }
    return nullptr;
  };
  std::string out;
  const ProbePoint* chosen = rate_at(r.batch);
  if (chosen == nullptr) {
    return format("batch {}: nothing else was measured", r.batch);
  }
  out += format("batch {} is the knee: {} samples/s, {:.1f} % of the best measured ({} at batch {}).", r.batch,
                count_text(chosen->rate), 100 * chosen->rate / std::max(1e-9, r.best_rate),
                count_text(r.best_rate), r.best);
  if (chosen->dram_share) {
    out += format(" DRAM runs at {:.0f} % of what is achievable.", 100 * *chosen->dram_share);
  }
  if (r.b > 0) {
    out += format("\n{:.0f} % of its step is cost that does not grow with the batch (B_half {:.1f}: half of "
                  "the top speed, {} samples/s, is reached there).",
                  100 * r.elasticity, r.half_batch, count_text(r.rate_limit));
  }
  const auto beside = [&](const ProbePoint& p) {
    return format("batch {}: {} samples/s ({}{:.1f} %)", p.batch, count_text(p.rate),
                  p.rate >= chosen->rate ? "+" : "", 100 * (p.rate / chosen->rate - 1));
  };
  const ProbePoint* below = nullptr;
  const ProbePoint* above = nullptr;
  for (const ProbePoint& p : r.points) {
    if (p.batch < r.batch && !p.cold) {
      below = &p;
    }
    if (p.batch > r.batch && !p.cold && above == nullptr) {
      above = &p;
    }
  }
  if (below != nullptr || above != nullptr) {
    out += "\nIts neighbours:";
    out += below != nullptr ? " " + beside(*below) : "";
    out += below != nullptr && above != nullptr ? "," : "";
    out += above != nullptr ? " " + beside(*above) : "";
    out += ".";
  }
  if (configured != r.batch) {
    if (const ProbePoint* c = rate_at(configured)) {
      out += format("\nThe configured {}.", beside(*c));
    }
  }
  out += format("\nThe largest batch that fits is {}", r.largest);
  const ProbePoint* largest = rate_at(r.largest);
  if (largest != nullptr && largest->batch != r.batch && !largest->cold) {
    out += format(" ({}{:.1f} % samples/s)", largest->rate >= chosen->rate ? "+" : "",
                  100 * (largest->rate / chosen->rate - 1));
  }
  out += format("; the search ended because: {}.", r.stop.empty() ? "the answer was known" : r.stop);
  if (r.capped) {
    out += format("\nThroughput would still rise: {:.0f} % of the step is fixed cost at the largest batch.",
                  100 * r.elasticity);
  }
  if (r.budget) {
    out += "\nThe probe's budget ended first: the best lower bound so far stands.";
  }
  if (r.bound_broken) {
    out += "\nSteps ran faster than DRAM alone would allow: caches hold the data, so the bandwidth bound was "
           "left out.";
  }
  return out;
}

}  // namespace penstock::tuner
