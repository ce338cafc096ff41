// Where a run stands: everything besides tensors that a checkpoint holds, and how it is saved and
// read back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/io/checkpoint_snapshot.h"
#include "framework/io/checkpoint_store.h"
#include "framework/io/json.h"
#include "trainers/feed.h"
#include "trainers/setup.h"

namespace penstock::trainers {

struct RunState {
  i64 step = 0;      // optimizer steps, skipped ones included
  i64 position = 0;  // of the next sample
  StepShape shape{};
  // What the batch policy made of the configured numbers.
  double rate_factor = 1;
  double kappa = 1;
  double norm_factor = 1;
  double ramp_from = 1;      // factor at the ramp's beginning
  i64 ramp_begin = 0;        // position
  i64 ramp_samples = 0;
  bool batch_chosen = false;  // by a probe: a resumed run does not probe again
  int workers = 1, depth = 2, io = 1;
  i64 evaluations = 0, saves = 0;
  std::optional<double> best;       // metric
  std::optional<double> last_metric;
  double seconds = 0;               // of the run, restarts left out
  i64 skipped = 0;                  // steps
  i64 skipped_in_a_row = 0;
  i64 bad_samples = 0;
  std::optional<double> seconds_to_target;
  // The line of metrics.jsonl that is being added up.
  double loss_sum = 0;  // over targets
  i64 targets = 0, correct = 0, samples = 0, steps = 0;
  double grad_norm = 0;
};

io::Json to_json(const RunState& state, const io::Config& config);
// Throws StorageError naming `path` for a file that to_json() would not write.
RunState state_from_json(const io::Json& json, const std::string& path);

// The whole run in a snapshot: weights under public names, optimizer and step state, run.json.
void add_run(io::Snapshot& snapshot, const Setup& setup, StepRunner& runner, const RunState& state);
// Reads it back into the runner. Throws ConfigError when a frozen key differs.
RunState load_run(const io::Checkpoint& checkpoint, const Setup& setup, StepRunner& runner);
// Only the weights, e.g. for evaluation.
void load_model(const io::Checkpoint& checkpoint, StepRunner& runner);
// The configuration that a checkpoint was written with.
io::Config config_of(const io::Checkpoint& checkpoint);

}  // namespace penstock::trainers
