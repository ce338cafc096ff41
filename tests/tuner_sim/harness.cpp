#include "tests/tuner_sim/harness.h"

#include <algorithm>

namespace penstock::tuner_sim {
namespace {

class Penstock : public LoaderController {
 public:
  explicit Penstock(tuner::OnlineOptions options) : tuner_(std::move(options)) {}
  tuner::Settings start() const override { return tuner_.settings(); }
  tuner::Settings next(const tuner::Interval& interval) override {
    tuner_.observe(interval);
    tuner_.take_records();
    return tuner_.settings();
  }

 private:
  tuner::OnlineTuner tuner_;
};

}  // namespace

LoaderScore run_loader(const LoaderCell& cell, LoaderController& controller, const LoaderRun& run) {
  LoaderScore score;
  tuner::Settings settings = controller.start();
  LoaderSimulation simulation(cell.machine, settings, run.seed);
  double seconds = 0;
  double samples = 0;
  for (int i = 0; i < run.intervals; ++i) {
    if (i == cell.change_at && cell.change) {
      cell.change(simulation.machine());
      simulation.machine_changed();
    }
    const bool tail = i >= run.intervals - run.tail;
    const tuner::Interval interval = simulation.run(run.steps);
    if (tail) {
      seconds += interval.seconds;
      samples += double(interval.samples);
      score.cores += double(std::max(1, settings.workers)) / run.tail;
      score.slots += double(settings.depth + 1) / run.tail;
    }
    const tuner::Settings next = controller.next(interval);
    if (!(next == settings)) {
      ++score.changes;
      score.last_change = i;
      score.late_changes += tail ? 1 : 0;
      settings = next;
      simulation.set(settings);
    }
  }
  score.rate = samples / seconds;
  return score;
}

LoaderOracle loader_oracle(const LoaderCell& cell, std::uint64_t seed) {
  LoaderMachine machine = cell.machine;
  if (cell.change) {
    cell.change(machine);
  }
  LoaderOracle best;
  for (const int workers : {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}) {
    for (const int depth : {2, 3, 4, 6, 8, 12, 16, 32}) {
      if ((depth + 1) * cell.batch > machine.ring_slots && depth > 2) {
        continue;
      }
      if (workers == 0 && depth > 2) {
        continue;
      }
      const tuner::Settings settings{.batch = cell.batch,
                                     .workers = workers,
                                     .depth = depth,
                                     .io = 2 * machine.fetch_parallel};
      LoaderSimulation simulation(machine, settings, seed);
      simulation.run(100);
      const tuner::Interval interval = simulation.run(900);
      const double rate = double(interval.samples) / interval.seconds;
      if (rate > best.rate) {
        best = {.settings = settings, .rate = rate};
      }
    }
  }
  return best;
}

tuner::OnlineOptions online_options(const LoaderCell& cell) {
  tuner::OnlineOptions options;
  options.start = {.batch = cell.batch, .workers = 2, .depth = 2, .io = 1};
  options.max_workers = cell.machine.cores;
  options.loader_cores = cell.machine.cores;
  options.ring_slots = cell.machine.ring_slots;
  return options;
}

std::unique_ptr<LoaderController> penstock_controller(const LoaderCell& cell) {
  return std::make_unique<Penstock>(online_options(cell));
}

std::unique_ptr<LoaderController> penstock_controller(
    const LoaderCell& cell, const std::function<void(tuner::OnlineOptions&)>& change) {
  tuner::OnlineOptions options = online_options(cell);
  change(options);
  return std::make_unique<Penstock>(std::move(options));
}

}  // namespace penstock::tuner_sim
