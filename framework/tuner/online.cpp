#include "framework/tuner/online.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock::tuner {
namespace {

constexpr std::size_t kPoolLength = 8;   // older intervals no longer speak for the present
constexpr double kDeparture = 1.35;      // s or g by this factor: suspect
constexpr double kDramDeparture = 0.15;  // DRAM share by these points: suspect
constexpr int kSuspects = 2;             // suspects in a row: a new regime
constexpr i64 kStableRegime = 30;        // intervals that a regime should last
constexpr double kCalmStall = 0.005;     // below: nobody waits for data
constexpr double kSteadyError = 0.01;    // relative error of the rate that is good enough to act
constexpr int kEnough = 4;               // intervals that are good enough whatever the noise
constexpr int kMostToVerify = 6;         // intervals after which an open trial is decided
constexpr double kDoubtUp = 0.02;        // gain that noise may feign in a step up
constexpr double kDoubtDown = 0.01;      // loss that noise may feign in a step down
constexpr double kCrowded = 0.05;        // run delay above: workers slow the step
constexpr double kUrgentStall = 0.25;    // act on one interval
constexpr double kPoorScaling = 0.25;    // efficiency of a step up that marks the knee
constexpr double kFairScaling = 0.7;     // below: the best may lie between
constexpr double kWorthGain = 0.02;      // throughput that justifies looking on at once

double rounded_or_zero(double value) {
  return std::isfinite(value) ? rounded(value) : 0.0;
}

// Six digits are more than any meter gives, and the log stays short and exact.
Interval rounded_interval(Interval interval) {
  for (double* value : {&interval.seconds, &interval.stall_seconds, &interval.step_seconds,
                        &interval.cycle_cv, &interval.service_seconds, &interval.run_delay_share,
                        &interval.fetch_seconds, &interval.queue_low, &interval.queue_high}) {
    *value = rounded_or_zero(*value);
  }
  for (std::optional<double>* value :
       {&interval.dram_share, &interval.launch_share, &interval.host_bandwidth_share}) {
    if (*value && !std::isfinite(**value)) {
      value->reset();
    } else if (*value) {
      *value = rounded(**value);
    }
  }
  return interval;
}

// Durations of a monotonic clock are positive; anything else is a fault of the meter, not a fact
// about the loader.
bool possible(const Interval& interval) {
  return interval.seconds > 0 && interval.steps > 0 && interval.samples > 0 &&
         interval.step_seconds > 0 && interval.stall_seconds >= 0 &&
         interval.stall_seconds <= 1.01 * interval.seconds && interval.service_seconds >= 0 &&
         interval.fetch_seconds >= 0;
}

double log_ratio(double a, double b) {
  return a > 0 && b > 0 ? std::log(a / b) : 0.0;
}

}  // namespace

bool interval_is_complete(double seconds, i64 steps) {
  return (seconds >= 0.5 && steps >= 30) || (seconds >= 4.0 && steps >= 4);
}

Interval merged(const Interval& first, const Interval& second) {
  if (first.steps <= 0 || second.steps <= 0) {
    return first.steps <= 0 ? second : first;
  }
  const auto mean = [](double x, double y, double x_weight, double y_weight) {
    const double weight = x_weight + y_weight;
    return weight > 0 ? (x * x_weight + y * y_weight) / weight : 0.5 * (x + y);
  };
  const auto by_steps = [&](double x, double y) {
    return mean(x, y, double(first.steps), double(second.steps));
  };
  // A piece that decoded or read nothing says nothing about what a sample costs.
  const auto by_samples = [&](double x, double y) {
    return mean(x, y, x > 0 ? double(first.samples) : 0, y > 0 ? double(second.samples) : 0);
  };
  const auto share = [&](const std::optional<double>& x, const std::optional<double>& y) {
    return x && y ? std::optional(mean(*x, *y, first.seconds, second.seconds)) : x ? x : y;
  };
  Interval sum;
  sum.seconds = first.seconds + second.seconds;
  sum.steps = first.steps + second.steps;
  sum.samples = first.samples + second.samples;
  sum.stall_seconds = first.stall_seconds + second.stall_seconds;
  sum.step_seconds = by_steps(first.step_seconds, second.step_seconds);
  sum.cycle_cv =
      std::sqrt(by_steps(first.cycle_cv * first.cycle_cv, second.cycle_cv * second.cycle_cv));
  sum.service_seconds = by_samples(first.service_seconds, second.service_seconds);
  sum.run_delay_share = by_steps(first.run_delay_share, second.run_delay_share);
  sum.fetch_seconds = by_samples(first.fetch_seconds, second.fetch_seconds);
  sum.queue_low = std::min(first.queue_low, second.queue_low);
  sum.queue_high = std::max(first.queue_high, second.queue_high);
  sum.dram_share = share(first.dram_share, second.dram_share);
  sum.launch_share = share(first.launch_share, second.launch_share);
  sum.host_bandwidth_share = share(first.host_bandwidth_share, second.host_bandwidth_share);
  sum.disturbed = first.disturbed || second.disturbed;
  return sum;
}

const char* name_of(Knob knob) {
  switch (knob) {
    case Knob::kBatch: return "batch";
    case Knob::kWorkers: return "workers";
    case Knob::kDepth: return "depth";
    case Knob::kIo: return "io_concurrency";
  }
  return "";
}

std::string to_string(const Settings& settings) {
  return format("batch {}, {} workers, depth {}, {} reads", settings.batch, settings.workers,
                settings.depth, settings.io);
}

OnlineTuner::OnlineTuner(OnlineOptions options)
    : options_(std::move(options)), settings_(options_.start) {
  check(options_.start.batch >= 1 && options_.start.workers >= 0 && options_.start.depth >= 1 &&
            options_.start.io >= 1,
        "online tuner: start at {}: batch, depth and reads should be at least 1",
        to_string(options_.start));
  if (options_.ring_slots < 2 * settings_.batch) {
    throw ConfigError(
        format("online tuner: a ring of {} samples is less than two batches of {}; "
               "raise loader.max_bytes or lower train.batch",
               options_.ring_slots, settings_.batch));
  }
  const int most_depth = depth_cap(settings_.batch);
  if (options_.pin_depth && settings_.depth > most_depth) {
    throw ConfigError(format(
        "online tuner: loader.depth {} needs {} sample slots, the ring has "
        "{}; lower it to {} or raise loader.max_bytes",
        settings_.depth, (settings_.depth + 1) * settings_.batch, options_.ring_slots, most_depth));
  }
  settings_.depth = std::min(settings_.depth, most_depth);
  if (!options_.pin_workers) {
    settings_.workers = std::min(settings_.workers, worker_cap());
  }
  if (!options_.pin_io) {
    settings_.io = std::min(settings_.io, std::max(1, options_.max_io));
  }
  for (std::size_t i = 1; i < options_.batches.size(); ++i) {
    check(options_.batches[i - 1].batch < options_.batches[i].batch,
          "online tuner: batch candidates should ascend, {} stands before {}",
          options_.batches[i - 1].batch, options_.batches[i].batch);
  }
  log_start();
}

int OnlineTuner::depth_cap(i64 batch) const {
  return int(std::clamp<i64>(options_.ring_slots / batch - 1, 1, std::max(1, options_.max_depth)));
}

int OnlineTuner::worker_cap() const {
  return std::max(1, std::min(options_.max_workers, int(options_.loader_cores)));
}

bool OnlineTuner::pinned(Knob knob) const {
  switch (knob) {
    case Knob::kBatch: return options_.pin_batch || options_.batches.empty();
    case Knob::kWorkers: return options_.pin_workers;
    case Knob::kDepth: return options_.pin_depth;
    case Knob::kIo: return options_.pin_io;
  }
  return true;
}

void OnlineTuner::Noise::add(double log_difference) {
  constexpr double kMemory = 0.97;
  sum = kMemory * sum + 0.5 * log_difference * log_difference;
  weight = kMemory * weight + 1;
}

double OnlineTuner::Noise::sigma() const {
  // Few differences say little: the estimate is widened.
  return weight < 0.5 ? 0.0 : std::sqrt(sum / weight) * (1 + 1 / weight);
}

OnlineTuner::Summary OnlineTuner::summarise() const {
  Summary mean;
  mean.count = int(pool_.size());
  mean.low = 1e30;
  double seconds = 0;
  double stall = 0;
  double within = 0;
  std::array<double, 3> shares{};
  std::array<int, 3> counts{};
  for (const Interval& interval : pool_) {
    seconds += interval.seconds;
    stall += interval.stall_seconds;
    mean.rate += double(interval.samples) / interval.seconds;
    mean.step += interval.step_seconds;
    mean.service += interval.service_seconds;
    mean.fetch += interval.fetch_seconds;
    mean.run_delay += interval.run_delay_share;
    mean.low = std::min(mean.low, interval.queue_low);
    mean.high = std::max(mean.high, interval.queue_high);
    within += interval.cycle_cv / std::sqrt(double(interval.steps));
    const std::array<const std::optional<double>*, 3> optional = {
        &interval.dram_share, &interval.launch_share, &interval.host_bandwidth_share};
    for (std::size_t i = 0; i < optional.size(); ++i) {
      if (*optional[i]) {
        shares[i] += **optional[i];
        ++counts[i];
      }
    }
  }
  const double n = std::max(1.0, double(mean.count));
  mean.rate /= n;
  mean.step /= n;
  mean.service /= n;
  mean.fetch /= n;
  mean.run_delay /= n;
  mean.stall = seconds > 0 ? stall / seconds : 0;
  const std::array<std::optional<double>*, 3> out = {&mean.dram, &mean.launch,
                                                     &mean.host_bandwidth};
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (counts[i] > 0) {
      *out[i] = shares[i] / double(counts[i]);
    }
  }
  double sigma = rate_noise_.sigma();
  if (rate_noise_.weight < 2.5) {
    sigma = std::max(sigma, within / n);
  }
  mean.rate_error = rate_noise_.weight < 0.5 ? 0.05 : sigma / std::sqrt(n);
  return mean;
}

// Does the interval contradict what these settings gave so far?
bool OnlineTuner::departs(const Interval& interval) const {
  if (pool_.empty() && !reference_) {
    return false;
  }
  const Summary known = pool_.empty() ? *reference_ : summarise();
  const auto far = [](double now, double before, const Noise& noise) {
    const double limit = std::max(std::log(kDeparture), 4 * noise.sigma());
    return std::abs(log_ratio(now, before)) > limit;
  };
  const bool dram = options_.use_bandwidth && interval.dram_share && known.dram &&
                    std::abs(*interval.dram_share - *known.dram) > kDramDeparture;
  return far(interval.service_seconds, known.service, service_noise_) ||
         far(interval.step_seconds, known.step, step_noise_) ||
         far(interval.fetch_seconds, known.fetch, fetch_noise_) || dram;
}

void OnlineTuner::pool(const Interval& interval) {
  if (!pool_.empty()) {
    const Interval& last = pool_.back();
    rate_noise_.add(log_ratio(double(interval.samples) / interval.seconds,
                              double(last.samples) / last.seconds));
    step_noise_.add(log_ratio(interval.step_seconds, last.step_seconds));
    service_noise_.add(log_ratio(interval.service_seconds, last.service_seconds));
    fetch_noise_.add(log_ratio(interval.fetch_seconds, last.fetch_seconds));
  }
  pool_.push_back(interval);
  if (pool_.size() > kPoolLength) {
    pool_.erase(pool_.begin());
  }
  calm_ = interval.stall_seconds < kCalmStall * interval.seconds ? calm_ + 1 : 0;
}

Action OnlineTuner::observe(const Interval& raw) {
  const Interval interval = rounded_interval(raw);
  ++sequence_;
  if (!possible(interval)) {
    log_interval(interval, "impossible");
    return {};
  }
  if (interval.disturbed || settling_) {
    log_interval(interval, interval.disturbed ? "disturbed" : "settling");
    settling_ = settling_ && interval.disturbed;
    return {};
  }
  ++since_batch_change_;
  if (departs(interval)) {
    suspects_.push_back(interval);
    if (int(suspects_.size()) < kSuspects) {
      log_interval(interval, "suspect");
      return {};
    }
    log_interval(interval, "regime");
    return flush(interval);
  }
  suspects_.clear();
  log_interval(interval, trial_ || cooldown_ == 0 ? "acting" : "cooling");
  pool(interval);
  return trial_ ? verify() : propose();
}

// A new regime: what was learned no longer holds. An open trial ends without a verdict.
Action OnlineTuner::flush(const Interval& interval) {
  Record record("online.regime");
  record.set("sequence", sequence_).set("step_seconds", interval.step_seconds);
  record.set("service_seconds", interval.service_seconds);
  record.set("fetch_seconds", interval.fetch_seconds);
  record.set("void_trial", trial_.has_value());
  records_.push_back(std::move(record));
  trial_.reset();
  reference_.reset();
  memories_ = {};
  // Regimes that follow each other closely are weather: patience grows as for steps that failed.
  flushes_ = sequence_ - last_flush_ < kStableRegime ? std::min(flushes_ + 1, 6) : 0;
  last_flush_ = sequence_;
  cooldown_length_ = 1 << flushes_;
  cooldown_ = flushes_ > 0 ? cooldown_length_ : 0;
  calm_ = 0;
  pool_.clear();
  const std::vector<Interval> suspects = std::exchange(suspects_, {});
  for (const Interval& suspect : suspects) {
    pool(suspect);
  }
  return propose();
}

bool OnlineTuner::decided(const Summary& now, double gain, double error) const {
  const double margin = std::abs(gain - trial_->proposal.needed_gain);
  if (now.count >= kMostToVerify) {
    return true;
  }
  if (margin > 1.64 * error) {
    return now.count >= kEnough || error < kSteadyError || margin > 3 * error;
  }
  return false;
}

Action OnlineTuner::verify() {
  const Summary now = summarise();
  const double gain = now.rate / trial_->before.rate - 1;
  const double error = std::hypot(now.rate_error, trial_->before.rate_error);
  // A step down that starves nobody cannot have cost anything: what moved is noise. Where threads
  // crowd the cores, workers act on the step itself, and only throughput can tell.
  const bool harmless = !trial_->proposal.up && trial_->proposal.knob != Knob::kBatch &&
                        now.stall < kSteadyError && now.count >= kSuspects &&
                        trial_->before.run_delay < kCrowded;
  if (harmless) {
    return keep(now, gain, error);
  }
  if (!decided(now, gain, error)) {
    return {};
  }
  // Among equals the fewest cores: a step down that is not clearly worse has the benefit of doubt,
  // a step up that gives little of what it promised has not.
  double needed = trial_->proposal.needed_gain;
  const bool poor = gain < kPoorScaling * trial_->proposal.predicted_gain;
  if (trial_->proposal.up && poor) {
    needed += std::min(error, kDoubtUp);
  } else if (!trial_->proposal.up && trial_->proposal.knob != Knob::kBatch) {
    needed -= std::min(error, kDoubtDown);
  }
  return gain >= needed ? keep(now, gain, error) : revert(now, gain, error);
}

namespace {

int value_of(const Settings& settings, Knob knob) {
  switch (knob) {
    case Knob::kWorkers: return settings.workers;
    case Knob::kDepth: return settings.depth;
    case Knob::kIo: return settings.io;
    case Knob::kBatch: break;
  }
  return int(std::min<i64>(settings.batch, 1 << 30));
}

Record verdict_record(const char* outcome, const char* knob, i64 sequence) {
  Record record("online.verdict");
  record.set("sequence", sequence).set("knob", knob).set("outcome", outcome);
  return record;
}

}  // namespace

Action OnlineTuner::keep(const Summary& now, double gain, double error) {
  const Trial trial = *std::exchange(trial_, std::nullopt);
  const Knob knob = trial.proposal.knob;
  Memory& known = memory(knob);
  ++tallies_[std::size_t(knob)].kept;
  if (trial.proposal.up) {
    // What the other knobs could not do before, they may do now.
    for (std::size_t other = 0; other < kKnobs; ++other) {
      if (other != std::size_t(knob)) {
        memories_[other].ceiling = 0;
        memories_[other].up_closed = false;
        memories_[other].up_failures = 0;
      }
    }
  }
  known.look_far = trial.proposal.speculative;
  const int from = value_of(trial.from, knob);
  const int to = value_of(settings_, knob);
  if (trial.proposal.up) {
    known.up_failures = 0;
    if (gain > 1.64 * error) {
      known.floor = std::max(known.floor, from + 1);
    }
    if (knob == Knob::kWorkers) {
      judge_scaling(trial, now);
    }
  } else {
    known.down_failures = 0;
    if (knob == Knob::kWorkers && known.refine_from > 0) {
      known.ceiling = from - 1;
      known.refine_from = 0;
    }
  }
  // What brought no throughput waits longer and longer before the next try.
  if (gain < kWorthGain && to != from) {
    cooldown_length_ *= 2;
    cooldown_ = cooldown_length_;
  } else {
    cooldown_ = 0;
  }
  Record record = verdict_record("kept", name_of(knob), sequence_);
  record.set("gain", rounded(gain)).set("error", rounded(error)).set("rate", rounded(now.rate));
  record.set("stall", rounded(now.stall));
  records_.push_back(std::move(record));
  return {.changed = false,
          .reason = format("{} kept: throughput {:+.1f} % (needed {:+.1f} %)", name_of(knob),
                           100 * gain, 100 * trial.proposal.needed_gain)};
}

// How well did the step up scale? A poor answer marks the knee.
void OnlineTuner::judge_scaling(const Trial& trial, const Summary& now) {
  Memory& known = memory(Knob::kWorkers);
  const int from = trial.from.workers;
  const int to = settings_.workers;
  if (from == 0 || now.service <= 0 || trial.before.service <= 0) {
    return;
  }
  const double supply = (to / now.service) / (from / trial.before.service);
  const double scaling = (supply - 1) / (double(to) / from - 1);
  const bool overshot_before = known.ceiling > 0;
  if (scaling < kPoorScaling) {
    known.ceiling = to;
    cooldown_length_ *= 2;
  }
  // The best number may lie between; not looked for twice.
  const bool between =
      scaling < kFairScaling && to - from >= 2 && !overshot_before && !trial.proposal.speculative;
  known.refine_from = between ? from : 0;
}

Action OnlineTuner::revert(const Summary& now, double gain, double error) {
  const Trial trial = *std::exchange(trial_, std::nullopt);
  const Knob knob = trial.proposal.knob;
  Memory& known = memory(knob);
  ++tallies_[std::size_t(knob)].reverted;
  const bool sure = std::abs(gain - trial.proposal.needed_gain) > 1.64 * error;
  const int from = value_of(trial.from, knob);
  const int to = value_of(trial.proposal.to, knob);
  known.look_far = false;
  if (trial.proposal.speculative) {
    // Noise may have spoken: without certainty a second look is allowed.
    bool& looked = trial.proposal.up ? known.looked_up : known.looked_down;
    int& failures = trial.proposal.up ? known.looks_up_failed : known.looks_down_failed;
    looked = sure || ++failures >= 2;
  } else if (trial.proposal.up) {
    ++known.up_failures;
    // Half the step next time while more is clearly worse; a second flat answer ends the search.
    const bool worse = gain < -trial.proposal.needed_gain;
    if (knob == Knob::kWorkers && worse && known.floor == 0) {
      known.up_closed = true;  // beyond the best already: look far down instead
      known.look_far = true;
    } else if (knob == Knob::kWorkers && to - from >= 2 && (worse || known.up_failures < 2)) {
      known.ceiling = from + (to - from) / 2;
    } else if (sure || known.up_failures >= 2) {
      known.up_closed = true;
    }
  } else {
    ++known.down_failures;
    known.refine_from = 0;
    known.floor = std::max(known.floor, (from + to + 1) / 2);
    known.down_closed = known.floor >= from;
  }
  cooldown_length_ *= 2;
  cooldown_ = cooldown_length_;
  Record record = verdict_record("reverted", name_of(knob), sequence_);
  record.set("gain", rounded(gain)).set("error", rounded(error)).set("rate", rounded(now.rate));
  record.set("stall", rounded(now.stall)).set("cooldown", cooldown_);
  records_.push_back(std::move(record));
  apply(trial.from);
  reference_ = trial.before;
  return {.changed = true,
          .reason = format("{} back to {}: throughput {:+.1f} % (needed {:+.1f} %)", name_of(knob),
                           from, 100 * gain, 100 * trial.proposal.needed_gain)};
}

void OnlineTuner::apply(const Settings& settings) {
  if (settings.batch != settings_.batch) {
    since_batch_change_ = 0;
  }
  settings_ = settings;
  pool_.clear();
  suspects_.clear();
  reference_.reset();
  settling_ = true;
  calm_ = 0;
  ++changes_;
}

Action OnlineTuner::propose() {
  if (cooldown_ > 0) {
    --cooldown_;
    return {};
  }
  const Summary now = summarise();
  const bool ready =
      now.rate_error < kSteadyError || now.count >= kEnough || now.stall > kUrgentStall;
  if (!ready) {
    return {};
  }
  using Rule = std::optional<Proposal> (OnlineTuner::*)(const Summary&) const;
  constexpr std::array<Rule, 8> kRules = {&OnlineTuner::refine_workers, &OnlineTuner::more_supply,
                                          &OnlineTuner::fewer_workers,  &OnlineTuner::look_around,
                                          &OnlineTuner::smaller_batch,  &OnlineTuner::fewer_reads,
                                          &OnlineTuner::less_depth,     &OnlineTuner::larger_batch};
  for (const Rule rule : kRules) {
    std::optional<Proposal> proposal = (this->*rule)(now);
    if (!proposal || proposal->to == settings_) {
      continue;
    }
    if (proposal->knob == Knob::kWorkers) {
      Memory& known = memory(Knob::kWorkers);
      known.first_value = known.trials == 0 ? settings_.workers : known.first_value;
      ++known.trials;
    }
    ++tallies_[std::size_t(proposal->knob)].proposed;
    Record record("online.proposal");
    record.set("sequence", sequence_).set("knob", name_of(proposal->knob));
    record.set("rule", proposal->rule).set("batch", proposal->to.batch);
    record.set("workers", proposal->to.workers).set("depth", proposal->to.depth);
    record.set("io", proposal->to.io).set("predicted_gain", rounded(proposal->predicted_gain));
    record.set("needed_gain", proposal->needed_gain).set("pooled", now.count);
    record.set("rate", rounded(now.rate)).set("error", rounded(now.rate_error));
    record.set("stall", rounded(now.stall)).set("step_seconds", rounded(now.step));
    record.set("service_seconds", rounded(now.service));
    record.set("fetch_seconds", rounded(now.fetch)).set("run_delay", rounded(now.run_delay));
    if (now.dram) {
      record.set("dram_share", rounded(*now.dram));
    }
    if (now.launch) {
      record.set("launch_share", rounded(*now.launch));
    }
    record.set("reason", proposal->reason);
    records_.push_back(std::move(record));
    const std::string reason = proposal->reason;
    trial_ = Trial{.proposal = *std::move(proposal), .from = settings_, .before = now};
    apply(trial_->proposal.to);
    return {.changed = true, .reason = reason};
  }
  return {};
}

// The search over workers is a search over octaves: where nothing is noisy, ceil(log2(cap / W)) + 3
// trials settle it. Noise may spend more; the doubling cooldown bounds those.
bool OnlineTuner::may_try_workers() const {
  const Memory& known = memory(Knob::kWorkers);
  if (known.trials == 0 || rate_noise_.sigma() >= kSteadyError) {
    return true;
  }
  const double octaves = std::log2(double(worker_cap()) / std::max(1, known.first_value));
  return known.trials < int(std::ceil(std::max(0.0, octaves))) + 3;
}

Action OnlineTuner::limit_batch(i64 largest) {
  std::erase_if(options_.batches,
                [largest](const BatchCandidate& candidate) { return candidate.batch > largest; });
  Record record("online.limit");
  record.set("largest", largest);
  records_.push_back(std::move(record));
  if (trial_ && trial_->from.batch > largest) {
    trial_.reset();
  }
  if (settings_.batch <= largest) {
    return {};
  }
  if (options_.batches.empty()) {
    throw OutOfMemory(format("online tuner: batch {} ran out of memory and no smaller batch is "
                             "planned; lower train.batch or free memory on the device",
                             settings_.batch),
                      {});
  }
  const i64 before = settings_.batch;
  Settings to = trial_ ? trial_->from : settings_;
  trial_.reset();
  to.batch = std::min(to.batch, options_.batches.back().batch);
  apply(to);
  return {.changed = true,
          .reason = format("batch {} ran out of memory: batch {} from now on", before, to.batch)};
}

std::vector<Record> OnlineTuner::take_records() {
  return std::exchange(records_, {});
}

void OnlineTuner::log_start() {
  Record record("online.start");
  record.set("batch", settings_.batch).set("workers", settings_.workers);
  record.set("depth", settings_.depth).set("io", settings_.io);
  record.set("pin_batch", options_.pin_batch).set("pin_workers", options_.pin_workers);
  record.set("pin_depth", options_.pin_depth).set("pin_io", options_.pin_io);
  record.set("max_workers", options_.max_workers).set("max_depth", options_.max_depth);
  record.set("max_io", options_.max_io).set("loader_cores", options_.loader_cores);
  record.set("ring_slots", options_.ring_slots).set("use_bandwidth", options_.use_bandwidth);
  std::vector<double> batches;
  std::vector<double> steps;
  std::vector<double> bounds;
  for (BatchCandidate& candidate : options_.batches) {
    batches.push_back(double(candidate.batch));
    steps.push_back(candidate.step_seconds);
    bounds.push_back(candidate.bound_seconds);
  }
  record.set("batches", batches).set("batch_step_seconds", steps);
  record.set("batch_bound_seconds", bounds);
  records_.push_back(std::move(record));
}

void OnlineTuner::log_interval(const Interval& interval, const char* use) {
  Record record("online.interval");
  record.set("sequence", sequence_).set("use", use).set("seconds", interval.seconds);
  record.set("steps", interval.steps).set("samples", interval.samples);
  record.set("stall_seconds", interval.stall_seconds).set("step_seconds", interval.step_seconds);
  record.set("cycle_cv", interval.cycle_cv).set("service_seconds", interval.service_seconds);
  record.set("run_delay_share", interval.run_delay_share);
  record.set("fetch_seconds", interval.fetch_seconds).set("queue_low", interval.queue_low);
  record.set("queue_high", interval.queue_high).set("disturbed", interval.disturbed);
  if (interval.dram_share) {
    record.set("dram_share", *interval.dram_share);
  }
  if (interval.launch_share) {
    record.set("launch_share", *interval.launch_share);
  }
  if (interval.host_bandwidth_share) {
    record.set("host_bandwidth_share", *interval.host_bandwidth_share);
  }
  records_.push_back(std::move(record));
}

}  // namespace penstock::tuner
