// Other people's rules for the loader, from their published descriptions, in our engine: only the
// rule differs.
#include <algorithm>

#include "tests/tuner_sim/harness.h"

namespace penstock::tuner_sim {
namespace {

int depth_within_ring(const LoaderCell& cell, int depth) {
  return int(std::clamp<std::int64_t>(cell.machine.ring_slots / cell.batch - 1, 1, depth));
}

class Fixed : public LoaderController {
 public:
  explicit Fixed(const tuner::Settings& settings) : settings_(settings) {}
  tuner::Settings start() const override { return settings_; }
  tuner::Settings next(const tuner::Interval&) override { return settings_; }

 private:
  tuner::Settings settings_;
};

// tf.data: a model with cumulative averages, optimised at intervals that double up to a minute.
// Climbing from parallelism 1, +1 at a time, it stops when the predicted output time falls below
// total CPU time / CPU budget; the consumer's time is taken as 0, so a buffer never pays in the
// model. The buffer is the prefetch rule's: after it was full once, the first empty doubles it.
class TfData : public LoaderController {
 public:
  explicit TfData(const LoaderCell& cell) : cell_(cell) {
    settings_ = {.batch = cell.batch, .workers = 1, .depth = 1, .io = 1};
  }
  tuner::Settings start() const override { return settings_; }
  tuner::Settings next(const tuner::Interval& interval) override {
    clock_ += interval.seconds;
    processing_ += interval.service_seconds * double(interval.samples);
    reading_ += interval.fetch_seconds * double(interval.samples);
    elements_ += double(interval.samples);
    if (interval.queue_high >= settings_.depth) {
      was_full_ = true;
    }
    if (was_full_ && interval.queue_low < 1) {
      settings_.depth = depth_within_ring(cell_, 2 * settings_.depth);
      was_full_ = false;
    }
    if (clock_ >= due_) {
      period_ = std::min(60.0, 2 * period_);
      due_ = clock_ + period_;
      climb();
    }
    return settings_;
  }

 private:
  void climb() {
    const double decode = processing_ / elements_;
    const double fetch = reading_ / elements_;
    const double target = (decode + fetch) / double(cell_.machine.cores);
    int workers = 1;
    int reads = 1;
    while (decode / workers + fetch / reads > target) {
      const double by_worker = decode / workers - decode / (workers + 1);
      const double by_read = fetch / reads - fetch / (reads + 1);
      const bool worker =
          by_worker >= by_read ? workers < cell_.machine.cores : reads >= cell_.machine.cores;
      if (worker && workers < cell_.machine.cores) {
        ++workers;
      } else if (reads < cell_.machine.cores && fetch > 0) {
        ++reads;
      } else {
        break;
      }
    }
    settings_.workers = workers;
    settings_.io = reads;
  }

  LoaderCell cell_;
  tuner::Settings settings_;
  double clock_ = 0, due_ = 0.01, period_ = 0.01;
  double processing_ = 0, reading_ = 0, elements_ = 0;
  bool was_full_ = false;
};

// Cachew: one worker more while the batch time improves by more than 7 %, else one back and done;
// after 20 stable reports a batch time 1.5 times as long starts again.
class Cachew : public LoaderController {
 public:
  explicit Cachew(const LoaderCell& cell) : cores_(cell.machine.cores) {
    settings_ = {.batch = cell.batch, .workers = 1, .depth = depth_within_ring(cell, 4), .io = 8};
  }
  tuner::Settings start() const override { return settings_; }
  tuner::Settings next(const tuner::Interval& interval) override {
    const double time = interval.seconds / double(interval.steps);
    if (converged_) {
      ++stable_;
      if (stable_ > 20 && time > 1.5 * settled_) {
        converged_ = false;
        last_ = time;
        step(1);
      }
      return settings_;
    }
    const double improvement = last_ > 0 ? (last_ - time) / last_ : 1;
    if (improvement > 0.07 && settings_.workers < cores_) {
      last_ = time;
      step(1);
    } else {
      if (improvement <= 0.07) {
        step(-1);
      }
      converged_ = true;
      stable_ = 0;
      settled_ = time;
    }
    return settings_;
  }

 private:
  void step(int by) { settings_.workers = std::clamp(settings_.workers + by, 1, cores_); }

  tuner::Settings settings_;
  int cores_;
  double last_ = 0, settled_ = 0;
  int stable_ = 0;
  bool converged_ = false;
};

template <class Controller>
ControllerFactory make() {
  return [](const LoaderCell& cell) { return std::make_unique<Controller>(cell); };
}

}  // namespace

std::vector<NamedController> loader_baselines() {
  std::vector<NamedController> baselines;
  baselines.push_back({"static max", [](const LoaderCell& cell) {
                         return std::make_unique<Fixed>(
                             tuner::Settings{.batch = cell.batch,
                                             .workers = cell.machine.cores,
                                             .depth = depth_within_ring(cell, 12),
                                             .io = cell.machine.cores});
                       }});
  baselines.push_back({"PyTorch default", [](const LoaderCell& cell) {
                         return std::make_unique<Fixed>(tuner::Settings{
                             .batch = cell.batch, .workers = 0, .depth = 1, .io = 1});
                       }});
  baselines.push_back(
      {"static 4 x 2", [](const LoaderCell& cell) {
         return std::make_unique<Fixed>(tuner::Settings{
             .batch = cell.batch, .workers = 4, .depth = depth_within_ring(cell, 2), .io = 4});
       }});
  baselines.push_back({"tf.data hill climb", make<TfData>()});
  baselines.push_back({"Cachew 7 %", make<Cachew>()});
  return baselines;
}

}  // namespace penstock::tuner_sim
