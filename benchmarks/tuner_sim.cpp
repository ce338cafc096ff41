// How good are the tuner's decisions? Simulated machines, an oracle that knows the truth, and other
// people's published rules in the same engine. No real clock is read: every run prints the same.
//   tuner_sim [MACHINES]        default 2000 machines for the batch, the whole panel for the loader
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "framework/core/check.h"
#include "framework/tuner/probe.h"
#include "tests/tuner_sim/batch.h"
#include "tests/tuner_sim/harness.h"

namespace {

using penstock::format;
using namespace penstock::tuner_sim;

double at_share(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::size_t(share * double(values.size() - 1))];
}

struct BatchRow {
  std::string name;
  double regret = 0, worst = 0, within = 0, near_knee = 0, failures = 0, batches = 0;
  double knee_median = 0, knee_p95 = 0, steps = 0, seconds = 0;
  std::vector<double> regret_by_kind;
};

BatchRow batch_row(const NamedChooser& chooser, int machines) {
  BatchRow row{.name = chooser.name};
  const std::size_t kinds = batch_kinds().size();
  row.regret_by_kind.assign(kinds, 0);
  std::vector<double> knees;
  std::vector<double> steps;
  std::vector<double> seconds;
  for (int i = 0; i < machines; ++i) {
    // Machines that were not looked at while the rules were shaped.
    const auto seed = std::uint64_t(1'000'000 + i);
    const BatchMachine machine = random_batch_machine(seed);
    const std::vector<penstock::i64> grid = penstock::tuner::probe_grid(probe_options(machine));
    const BatchOracle oracle = batch_oracle(machine, grid.front(), grid.back());
    const BatchChoice choice = chooser.choose(machine, seed);
    // A batch that does not fit gives nothing.
    const bool fits = choice.batch <= machine.largest_fitting();
    const double share = fits ? std::min(1.0, machine.rate(choice.batch) / oracle.rate) : 0.0;
    row.regret += (1 - share) / machines;
    row.regret_by_kind[seed % kinds] += (1 - share) * double(kinds) / machines;
    row.worst = std::max(row.worst, 1 - share);
    row.within += share >= 0.95 ? 1.0 / machines : 0.0;
    row.failures += double(choice.failures) / machines;
    row.batches += double(choice.batches) / machines;
    knees.push_back(std::abs(std::log2(double(choice.batch) / double(oracle.knee))));
    row.near_knee += knees.back() <= 1 ? 1.0 / machines : 0.0;
    steps.push_back(choice.steps);
    seconds.push_back(choice.seconds);
  }
  row.knee_median = at_share(knees, 0.5);
  row.knee_p95 = at_share(knees, 0.95);
  row.steps = at_share(steps, 0.5);
  row.seconds = at_share(seconds, 0.5);
  return row;
}

struct LoaderRow {
  std::string name;
  double mean = 0, worst = 1, mean_held = 0, worst_held = 1, cores = 0, slots = 0, late = 0;
  std::vector<double> share;
};

LoaderRow loader_row(const std::string& name, const ControllerFactory& make,
                     const std::vector<LoaderCell>& panel, const std::vector<LoaderOracle>& best) {
  constexpr int kSeeds = 3;
  LoaderRow row{.name = name};
  int held = 0;
  for (std::size_t i = 0; i < panel.size(); ++i) {
    double share = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      const auto controller = make(panel[i]);
      const LoaderScore score = run_loader(panel[i], *controller, {.seed = seed});
      share += std::min(1.0, score.rate / best[i].rate) / kSeeds;
      row.cores += score.cores / kSeeds / double(panel.size());
      row.slots += score.slots / kSeeds / double(panel.size());
      row.late += double(score.late_changes) / kSeeds / double(panel.size());
    }
    row.share.push_back(share);
    row.mean += share / double(panel.size());
    row.worst = std::min(row.worst, share);
    if (panel[i].held_out) {
      ++held;
      row.mean_held += share;
      row.worst_held = std::min(row.worst_held, share);
    }
  }
  row.mean_held /= held;
  return row;
}

std::string quoted(const std::string& text) {
  return "\"" + text + "\"";
}

}  // namespace

int main(int argc, char** argv) {
  const int machines = argc > 1 ? std::max(8, std::atoi(argv[1]) / 8 * 8) : 2000;
  std::string json = format("{{\"benchmark\":\"tuner_sim\",\"machines\":{},\"batch\":[", machines);

  std::printf("Batch: %d machines of %zu kinds, the oracle knows every batch\n", machines,
              batch_kinds().size());
  std::printf("%-30s %7s %7s %8s %10s %10s %7s %8s %7s %8s\n", "", "regret", "worst", ">= 95 %",
              "knee p50", "knee p95", "steps", "seconds", "failed", "batches");
  std::vector<BatchRow> rows;
  for (const NamedChooser& chooser : batch_choosers()) {
    const BatchRow row = batch_row(chooser, machines);
    std::printf("%-30s %6.1f%% %6.1f%% %7.1f%% %9.2fx %9.2fx %7.0f %8.2f %7.2f %8.2f\n",
                row.name.c_str(), 100 * row.regret, 100 * row.worst, 100 * row.within,
                std::exp2(row.knee_median), std::exp2(row.knee_p95), row.steps, row.seconds,
                row.failures, row.batches);
    json += format(
        "{}{{\"name\":{},\"regret\":{:.4f},\"worst\":{:.4f},\"within_95\":{:.4f},\"knee_within_"
        "factor_2\":{:.4f},"
        "\"knee_factor_p50\":{:.3f},\"knee_factor_p95\":{:.3f},\"steps_p50\":{:.0f},"
        "\"seconds_p50\":{:.3f},\"failed_allocations\":{:.3f},\"batches\":{:.3f}}}",
        rows.empty() ? "" : ",", quoted(row.name), row.regret, row.worst, row.within, row.near_knee,
        std::exp2(row.knee_median), std::exp2(row.knee_p95), row.steps, row.seconds, row.failures,
        row.batches);
    rows.push_back(row);
  }
  std::printf("\nMean regret by kind of machine\n%-30s", "");
  for (const std::string& kind : batch_kinds()) {
    std::printf(" %11.11s", kind.c_str());
  }
  for (const BatchRow& row : rows) {
    std::printf("\n%-30s", row.name.c_str());
    for (const double regret : row.regret_by_kind) {
      std::printf(" %10.1f%%", 100 * regret);
    }
  }

  const std::vector<LoaderCell> panel = loader_panel();
  std::vector<LoaderOracle> best;
  for (const LoaderCell& cell : panel) {
    best.push_back(loader_oracle(cell, 1));
  }
  std::vector<LoaderRow> loaders;
  loaders.push_back(loader_row(
      "penstock", [](const LoaderCell& cell) { return penstock_controller(cell); }, panel, best));
  for (const NamedController& baseline : loader_baselines()) {
    loaders.push_back(loader_row(baseline.name, baseline.make, panel, best));
  }
  std::printf("\n\nLoader: %zu cells, share of the best of a grid over workers and depth\n",
              panel.size());
  std::printf("%-30s %7s %7s %9s %11s %8s %8s %6s\n", "", "mean", "worst", "mean held",
              "worst held", "workers", "batches", "late");
  json += "],\"loader\":[";
  for (const LoaderRow& row : loaders) {
    std::printf("%-30s %7.3f %7.3f %9.3f %11.3f %8.1f %8.1f %6.2f\n", row.name.c_str(), row.mean,
                row.worst, row.mean_held, row.worst_held, row.cores, row.slots, row.late);
    json += format(
        "{}{{\"name\":{},\"mean\":{:.4f},\"worst\":{:.4f},\"mean_held_out\":{:.4f},"
        "\"worst_held_out\":{:.4f},\"workers\":{:.2f},\"depth_batches\":{:.2f},"
        "\"late_changes\":{:.3f}}}",
        &row == &loaders.front() ? "" : ",", quoted(row.name), row.mean, row.worst, row.mean_held,
        row.worst_held, row.cores, row.slots, row.late);
  }
  std::printf("\n%-30s", "Share by cell (* held out)");
  for (const LoaderRow& row : loaders) {
    std::printf(" %10.10s", row.name.c_str());
  }
  for (std::size_t i = 0; i < panel.size(); ++i) {
    std::printf("\n%-28s %s", panel[i].name.c_str(), panel[i].held_out ? "*" : " ");
    for (const LoaderRow& row : loaders) {
      std::printf(" %10.3f", row.share[i]);
    }
  }
  json += "]}";
  std::printf("\n\n%s\n", json.c_str());
  return 0;
}
