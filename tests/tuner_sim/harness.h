// Drives loader controllers over simulated machines and scores them against a grid.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "framework/tuner/online.h"
#include "tests/tuner_sim/machines.h"

namespace penstock::tuner_sim {

// A way to choose workers, depth and reads: told an interval, answers the next settings.
class LoaderController {
 public:
  LoaderController() = default;
  LoaderController(const LoaderController&) = delete;
  LoaderController& operator=(const LoaderController&) = delete;
  virtual ~LoaderController() = default;
  virtual tuner::Settings start() const = 0;
  virtual tuner::Settings next(const tuner::Interval& interval) = 0;
};

// What a run of a controller came to.
struct LoaderScore {
  double rate = 0;       // samples per second over the tail
  double cores = 0;      // mean workers over the tail
  double slots = 0;      // mean ring slots allowed over the tail, in batches
  int late_changes = 0;  // changes of settings inside the tail
  int last_change = -1;  // interval of the last change
  int changes = 0;
};

struct LoaderRun {
  int intervals = 80;
  int tail = 20;
  std::int64_t steps = 30;
  std::uint64_t seed = 1;
};

LoaderScore run_loader(const LoaderCell& cell, LoaderController& controller, const LoaderRun& run);

// Best settings of a cell after its change, by an exhaustive grid of workers x depth (reads at
// twice what storage serves at once), and what they give.
struct LoaderOracle {
  tuner::Settings settings;
  double rate = 0;
};
LoaderOracle loader_oracle(const LoaderCell& cell, std::uint64_t seed);

using ControllerFactory = std::function<std::unique_ptr<LoaderController>(const LoaderCell& cell)>;
// Ours, from W = 2, D = 2, one read in flight.
std::unique_ptr<LoaderController> penstock_controller(const LoaderCell& cell);
// The same with options changed by the caller.
std::unique_ptr<LoaderController> penstock_controller(
    const LoaderCell& cell, const std::function<void(tuner::OnlineOptions&)>& change);
tuner::OnlineOptions online_options(const LoaderCell& cell);

// Baselines by their published rules (baselines.cpp).
struct NamedController {
  std::string name;
  ControllerFactory make;
};
std::vector<NamedController> loader_baselines();

}  // namespace penstock::tuner_sim
