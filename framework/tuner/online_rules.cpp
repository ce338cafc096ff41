// When a knob is moved, and where to. Each rule answers with one step or none; online.cpp tries the
// step and judges it by throughput.
#include <algorithm>
#include <cmath>

#include "framework/tuner/online.h"

namespace penstock::tuner {
namespace {

constexpr double kStall = 0.02;       // above: the consumer starves
constexpr double kQuiet = 0.01;       // below: it does not
constexpr double kSpare = 1.15;       // supply over demand
constexpr double kBusy = 0.85;        // share of a stage's time above which it may be the limit
constexpr double kPartlyBusy = 0.7;   // below: more of them would wait for slots as well
constexpr double kSaturated = 0.95;   // above: it is
constexpr double kWorkerGain = 0.02;  // a step up must bring this
constexpr double kDepthGain = 0.01;
constexpr double kDownTolerance = -0.01;
constexpr int kCalm = 3;             // calm intervals before workers go
constexpr int kLongCalm = 8;         // calm intervals before bytes go
constexpr int kBatchDwell = 6;       // intervals between changes of the batch
constexpr double kInline = 0.008;    // workers needed below which the training thread can do it
constexpr double kCoreDelay = 0.10;  // run delay above: too many threads for the cores
constexpr double kBusyHost = 0.7;    // host bandwidth above: workers may hinder each other
constexpr double kIdleHost = 0.4;    // below: they do not
constexpr double kBatchGain = 0.05;  // a larger batch must promise this
constexpr double kLaunchShare = 0.2;

int ceiling(double value) {
  return int(std::ceil(std::min(value, 1e6) - 1e-9));
}

}  // namespace

// A sample in work occupies a slot: with small batches more workers or readers need more depth.
int OnlineTuner::depth_for(const Settings& to, const Summary& now) const {
  if (pinned(Knob::kDepth)) {
    return to.depth;
  }
  const double in_work = to.workers + (now.fetch > 0 ? to.io : 0);
  const int needed = 1 + ceiling(in_work / double(to.batch));
  return std::max(to.depth, std::min(needed, depth_cap(to.batch)));
}

// The stage that is busy and short grows; both when both are, for one alone would change nothing.
// Idle workers beside a starving consumer wait for slots: that means depth.
std::optional<OnlineTuner::Proposal> OnlineTuner::more_supply(const Summary& now) const {
  if (now.stall <= kStall) {
    return std::nullopt;
  }
  const double demand = double(settings_.batch) / now.step;  // samples per second
  const int workers_wanted = ceiling(kSpare * demand * now.service);
  const int reads_wanted = ceiling(kSpare * demand * now.fetch);
  const double workers_busy =
      settings_.workers > 0 ? now.rate * now.service / settings_.workers : 1.0;
  const double reads_busy = now.fetch > 0 ? now.rate * now.fetch / settings_.io : 0.0;
  std::optional<Proposal> workers;
  std::optional<Proposal> reads;
  if (workers_wanted > settings_.workers) {
    workers = more_workers(now, workers_wanted);
  }
  if (now.fetch > 0 && reads_wanted > settings_.io) {
    reads = more_reads(now, reads_wanted);
  }
  // A saturated stage that cannot grow is the limit, whatever the other one gets.
  if ((reads_busy > kSaturated && !reads) || (workers_busy > kSaturated && !workers)) {
    return std::nullopt;
  }
  const bool by_workers = workers && workers_busy > kBusy;
  const bool by_reads = reads && reads_busy > kBusy;
  if (by_workers && by_reads) {
    Proposal& slower = workers_busy >= reads_busy ? *workers : *reads;
    slower.to.workers = workers->to.workers;
    slower.to.io = reads->to.io;
    slower.to.depth = depth_for(slower.to, now);
    return slower;
  }
  if (by_workers || by_reads) {
    return by_workers ? workers : reads;
  }
  if (std::max(workers_busy, reads_busy) < kSaturated) {
    if (std::optional<Proposal> depth = more_depth(now)) {
      return depth;
    }
  }
  if (workers && workers_busy > kPartlyBusy) {
    return workers;
  }
  return reads && reads_busy > kPartlyBusy ? reads : std::nullopt;
}

std::optional<OnlineTuner::Proposal> OnlineTuner::more_workers(const Summary& now,
                                                               int wanted) const {
  const Memory& known = memory(Knob::kWorkers);
  if (pinned(Knob::kWorkers) || known.up_closed || !may_try_workers()) {
    return std::nullopt;
  }
  const int here = settings_.workers;
  const int knee = known.ceiling > 0 ? known.ceiling : worker_cap();
  const int target = std::min({wanted, 2 * std::max(1, here), knee, worker_cap()});
  if (target <= here) {
    return std::nullopt;
  }
  Settings to = settings_;
  to.workers = target;
  to.depth = depth_for(to, now);
  const double supply = here > 0 ? double(target) / here : 2.0;
  return Proposal{
      .knob = Knob::kWorkers,
      .to = to,
      .up = true,
      .needed_gain = kWorkerGain,
      .predicted_gain = std::min(supply, 1 / std::max(1e-3, 1 - now.stall)) - 1,
      .rule = "workers_up",
      .reason = format("{:.0f} % of the time waits for data and {} workers decode less than the "
                       "step takes ({} would do): try {}",
                       100 * now.stall, here, wanted, target)};
}

std::optional<OnlineTuner::Proposal> OnlineTuner::more_reads(const Summary& now, int wanted) const {
  const Memory& known = memory(Knob::kIo);
  if (pinned(Knob::kIo) || known.up_closed) {
    return std::nullopt;
  }
  const int here = settings_.io;
  const int target = std::min({wanted, 2 * here, options_.max_io});
  if (target <= here || 10 * target < 11 * here) {
    return std::nullopt;
  }
  Settings to = settings_;
  to.io = target;
  to.depth = depth_for(to, now);
  return Proposal{
      .knob = Knob::kIo,
      .to = to,
      .up = true,
      .needed_gain = kWorkerGain,
      .predicted_gain = std::min(double(target) / here, 1 / std::max(1e-3, 1 - now.stall)) - 1,
      .rule = "reads_up",
      .reason = format("{:.0f} % of the time waits for data and storage, at {} reads "
                       "in flight, is the slowest stage: try {}",
                       100 * now.stall, here, target)};
}

std::optional<OnlineTuner::Proposal> OnlineTuner::more_depth(const Summary& now) const {
  const Memory& known = memory(Knob::kDepth);
  const int most = depth_cap(settings_.batch);
  if (pinned(Knob::kDepth) || known.up_closed || settings_.depth >= most ||
      settings_.workers == 0) {
    return std::nullopt;
  }
  const double busy = now.rate * now.service / settings_.workers;
  Settings to = settings_;
  to.depth = std::min(2 * settings_.depth, most);
  return Proposal{.knob = Knob::kDepth,
                  .to = to,
                  .up = true,
                  .needed_gain = kDepthGain,
                  .predicted_gain = 0.5 * now.stall,
                  .rule = "depth_up",
                  .reason = format("workers are {:.0f} % busy and yet {:.0f} % of the time waits "
                                   "for data: uneven samples; try depth {}",
                                   100 * busy, 100 * now.stall, to.depth)};
}

// An accepted jump that scaled badly: the best number may lie between.
std::optional<OnlineTuner::Proposal> OnlineTuner::refine_workers(const Summary& now) const {
  const Memory& known = memory(Knob::kWorkers);
  if (pinned(Knob::kWorkers) || !may_try_workers() || known.refine_from == 0 ||
      settings_.workers - known.refine_from < 2) {
    return std::nullopt;
  }
  Settings to = settings_;
  to.workers = (known.refine_from + settings_.workers) / 2;
  return Proposal{
      .knob = Knob::kWorkers,
      .to = to,
      .up = false,
      .needed_gain = kDownTolerance,
      .predicted_gain = 0,
      .rule = "workers_between",
      .reason = format("the step from {} to {} workers scaled badly ({:.0f} % stall "
                       "left): try {}",
                       known.refine_from, settings_.workers, 100 * now.stall, to.workers)};
}

std::optional<OnlineTuner::Proposal> OnlineTuner::fewer_workers(const Summary& now) const {
  const Memory& known = memory(Knob::kWorkers);
  const int here = settings_.workers;
  if (pinned(Knob::kWorkers) || !may_try_workers() || known.down_closed || here == 0 ||
      calm_ < kCalm || now.count < kCalm) {
    return std::nullopt;
  }
  // Time spent waiting for a core goes when workers go.
  const double needed = double(settings_.batch) * now.service * (1 - now.run_delay) / now.step;
  int target = std::max({1, ceiling(kSpare * needed), known.floor});
  if (here == 1 && needed < kInline && known.floor == 0) {
    target = 0;
  }
  // One worker of many is within the error of the estimate.
  if (here - target < std::max(1, int(0.15 * here))) {
    return std::nullopt;
  }
  Settings to = settings_;
  to.workers = target;
  return Proposal{.knob = Knob::kWorkers,
                  .to = to,
                  .up = false,
                  .needed_gain = kDownTolerance,
                  .predicted_gain = 0,
                  .rule = "workers_down",
                  .reason = format("nobody waits for data and the step needs {:.2f} workers: {} "
                                   "instead of {}",
                                   needed, target, here)};
}

// Workers that hinder the step or each other: steps that only throughput can judge. Down first; up
// as well where cores are crowded, for short bursts of many workers may hinder less than few that
// never stop.
std::optional<OnlineTuner::Proposal> OnlineTuner::look_around(const Summary& now) const {
  const Memory& known = memory(Knob::kWorkers);
  const int here = settings_.workers;
  if (pinned(Knob::kWorkers) || !may_try_workers() || here == 0) {
    return std::nullopt;
  }
  const bool starving = now.stall > kStall;
  const bool crowded = now.run_delay > kCoreDelay && (starving || calm_ >= kCalm);
  bool down = crowded;
  if (starving && known.floor == 0) {
    // Nothing below was measured in this regime. Bandwidth says whether it is worth a look.
    const bool idle_host =
        options_.use_bandwidth && now.host_bandwidth && *now.host_bandwidth < kIdleHost;
    down = down || !idle_host;
  }
  if (starving && options_.use_bandwidth && now.host_bandwidth.value_or(0) > kBusyHost) {
    down = true;
  }
  Settings to = settings_;
  if (down && here > 1 && !known.down_closed && !known.looked_down) {
    const int step = known.look_far ? here / 2 : here / 4;
    to.workers = std::max({1, here - std::max(1, step), known.floor});
    if (to.workers < here) {
      return Proposal{
          .knob = Knob::kWorkers,
          .to = to,
          .up = false,
          .needed_gain = kDownTolerance,
          .predicted_gain = 0,
          .rule = "workers_look_down",
          .reason = format("{} workers wait {:.0f} % of their time for a core and {:.0f} % of the "
                           "time waits for data: see whether {} do as well",
                           here, 100 * now.run_delay, 100 * now.stall, to.workers),
          .speculative = true};
    }
  }
  if (crowded && !known.looked_up && !known.up_closed) {
    to.workers = std::min(2 * here, worker_cap());
    if (to.workers > here) {
      return Proposal{
          .knob = Knob::kWorkers,
          .to = to,
          .up = true,
          .needed_gain = kWorkerGain,
          .predicted_gain = 0,
          .rule = "workers_look_up",
          .reason = format("{} workers wait {:.0f} % of their time for a core: see whether short "
                           "bursts of {} hinder the step less",
                           here, 100 * now.run_delay, to.workers),
          .speculative = true};
    }
  }
  return std::nullopt;
}

std::optional<OnlineTuner::Proposal> OnlineTuner::less_depth(const Summary& now) const {
  const Memory& known = memory(Knob::kDepth);
  if (pinned(Knob::kDepth) || known.down_closed || calm_ < kLongCalm || now.count < kLongCalm ||
      now.low <= 1) {
    return std::nullopt;
  }
  const int used = ceiling(now.high - now.low) + 1;
  const int target = std::max({std::min(2, depth_cap(settings_.batch)), used, known.floor});
  if (4 * target > 3 * settings_.depth) {
    return std::nullopt;  // not worth a change
  }
  Settings to = settings_;
  to.depth = target;
  return Proposal{.knob = Knob::kDepth,
                  .to = to,
                  .up = false,
                  .needed_gain = kDownTolerance,
                  .predicted_gain = 0,
                  .rule = "depth_down",
                  .reason = format("at least {:.1f} batches were always waiting: depth {} instead "
                                   "of {}",
                                   now.low, target, settings_.depth)};
}

std::optional<OnlineTuner::Proposal> OnlineTuner::fewer_reads(const Summary& now) const {
  const Memory& known = memory(Knob::kIo);
  if (pinned(Knob::kIo) || known.down_closed || calm_ < kLongCalm || now.count < kLongCalm ||
      now.fetch <= 0) {
    return std::nullopt;
  }
  const double needed = double(settings_.batch) / now.step * now.fetch;
  const int target = std::max({1, ceiling(kSpare * needed), known.floor});
  if (2 * target > settings_.io) {
    return std::nullopt;  // reads in flight cost little: only a large excess is worth a change
  }
  Settings to = settings_;
  to.io = target;
  return Proposal{.knob = Knob::kIo,
                  .to = to,
                  .up = false,
                  .needed_gain = kDownTolerance,
                  .predicted_gain = 0,
                  .rule = "reads_down",
                  .reason = format("nobody waits for data and the step needs {:.1f} reads in "
                                   "flight: {} instead of {}",
                                   needed, target, settings_.io)};
}

// The loader is the limit and has nothing left to give: the smallest batch at which the device
// still keeps up does as well.
std::optional<OnlineTuner::Proposal> OnlineTuner::smaller_batch(const Summary& now) const {
  const Memory& known = memory(Knob::kBatch);
  if (pinned(Knob::kBatch) || known.down_closed || now.stall <= 0.05 ||
      since_batch_change_ < kBatchDwell || now.count < kCalm) {
    return std::nullopt;
  }
  const BatchCandidate* target = nullptr;
  for (const BatchCandidate& candidate : options_.batches) {
    if (candidate.batch < settings_.batch && 2 * candidate.batch >= settings_.batch &&
        candidate.step_seconds > 0 &&
        double(candidate.batch) / candidate.step_seconds >= 1.05 * now.rate) {
      target = &candidate;
      break;
    }
  }
  if (target == nullptr) {
    return std::nullopt;
  }
  Settings to = settings_;
  to.batch = target->batch;
  return Proposal{
      .knob = Knob::kBatch,
      .to = to,
      .up = false,
      .needed_gain = kDownTolerance,
      .predicted_gain = 0,
      .rule = "batch_down",
      .reason = format("the loader gives {:.0f} samples/s whatever it is granted; batch "
                       "{} computes {:.0f}: it is enough",
                       now.rate, to.batch, double(target->batch) / target->step_seconds)};
}

std::optional<OnlineTuner::Proposal> OnlineTuner::larger_batch(const Summary& now) const {
  const Memory& known = memory(Knob::kBatch);
  if (pinned(Knob::kBatch) || known.up_closed || now.stall >= kQuiet ||
      since_batch_change_ < kBatchDwell || now.count < kCalm) {
    return std::nullopt;
  }
  const BatchCandidate* here = nullptr;
  const BatchCandidate* target = nullptr;
  for (const BatchCandidate& candidate : options_.batches) {
    if (candidate.batch == settings_.batch) {
      here = &candidate;
    }
    if (candidate.batch > settings_.batch && candidate.batch <= 2 * settings_.batch &&
        2 * candidate.batch <= options_.ring_slots) {
      target = &candidate;
    }
  }
  if (target == nullptr) {
    return std::nullopt;
  }
  const double grow = double(target->batch) / double(settings_.batch);
  double gain = now.launch.value_or(0) > kLaunchShare ? *now.launch / 2 : 0;
  if (here != nullptr && here->step_seconds > 0 && target->step_seconds > 0) {
    gain = std::max(gain, grow * here->step_seconds / target->step_seconds - 1);
  }
  if (options_.use_bandwidth) {
    // What bytes and FLOPs allow, and what the memory bus has left.
    if (target->bound_seconds > 0) {
      gain = std::min(gain, grow * now.step / target->bound_seconds - 1);
    }
    if (now.dram) {
      gain = std::min(gain, grow > 1 ? 1 / std::max(0.05, *now.dram) - 1 : 0);
    }
  }
  if (gain < kBatchGain) {
    return std::nullopt;
  }
  Settings to = settings_;
  to.batch = target->batch;
  to.depth = std::min(to.depth, depth_cap(to.batch));
  return Proposal{
      .knob = Knob::kBatch,
      .to = to,
      .up = true,
      .needed_gain = std::max(kWorkerGain, 0.5 * gain),
      .predicted_gain = gain,
      .rule = "batch_up",
      .reason = format("the device has room: batch {} promises {:+.0f} %", to.batch, 100 * gain)};
}

}  // namespace penstock::tuner
