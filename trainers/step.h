// One training step of one model on one device: everything that decides its memory, its kernels and
// its numbers. The same code runs on a CPU, on a GPU (eager or captured) and on `meta`, where it is
// the memory plan.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "framework/core/cuda.h"
#include "framework/core/ledger.h"
#include "framework/core/step_state.h"
#include "framework/measure/account.h"
#include "framework/nn/arena.h"
#include "framework/optim/optimizer.h"
#include "models/model.h"

namespace penstock::trainers {

struct StepOptions {
  Device device;
  DType compute = DType::f32;
  bool tf32 = false;
  std::uint64_t seed = 0;
  optim::OptimizerOptions optimizer{};
  std::vector<data::Field> fields;  // of the data set, in its order
  i64 largest = 1;                  // samples of the largest micro-batch that will ever come
  bool capture = false;             // CUDA: replay captured steps once a size has been run
  bool training = true;             // false: no gradients, moments or staging
};

// One micro-batch in host memory, as the loader hands it over.
using HostBatch = data::Batch;

// What one micro-batch is told.
struct MicroBatch {
  i64 count = 0;
  bool first = true;       // of its step: gradients are overwritten
  bool usual = true;       // a size that comes again: worth choosing algorithms and a graph
  StepInputs inputs{};
};

// What came of one optimizer step; on a GPU it is known a few steps later.
struct StepOutcome {
  i64 step = 0;
  i64 samples = 0;
  double loss = 0;  // mean over the targets
  i64 correct = 0;
  i64 targets = 0;
  double grad_norm = 0;
  double loss_scale = 1;
  bool skipped = false;  // a gradient was not finite: nothing was changed
  measure::Span busy;    // on the host's clock
};

// A copy of everything that training changes, to go back to.
struct StepSnapshot {
  Tensor masters, buffers, shadows, state;
  std::vector<Tensor> moments;
  i64 steps = 0;
};

class StepRunner {
 public:
  // Allocates the arenas, fixed inputs and staging buffers on the device.
  StepRunner(const models::ModelOptions& model, const StepOptions& options);
  ~StepRunner();
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Copies a micro-batch to the fixed input. On a GPU the copy to a staging buffer overlaps the step
  // that runs; the ticket says when the host memory may be reused.
  i64 load(const HostBatch& batch);
  // Has the copy of `ticket` passed? wait_copied() waits for it.
  bool copied(i64 ticket);
  void wait_copied(i64 ticket);
  // Copies whose times are known by now, for the account; emptied by the call.
  struct Copy {
    double issued = 0;
    measure::Span span;
  };
  std::vector<Copy> take_copies();

  // Forward and backward of the loaded micro-batch.
  void run(const MicroBatch& micro);
  // The optimizer, and the end of the step. `targets` and `samples` of the whole step.
  void finish(i64 samples, i64 targets);
  // Drops a step that has begun and cannot be finished; nothing was changed but the gradients.
  void abandon();
  // Outcomes that are known by now; with `all`, waits for the rest.
  std::vector<StepOutcome> outcomes(bool all = false);
  // Blocks until at most `ahead` steps are unfinished.
  void limit_ahead(i64 ahead);

  // Loss sum and correct predictions of the loaded micro-batch, without gradients.
  struct Evaluated {
    double loss_sum = 0;
    i64 correct = 0;
  };
  Evaluated evaluate(i64 count);
  // Logits of the loaded micro-batch, on the host in f32.
  std::vector<float> predict(i64 count, Shape* shape = nullptr);

  // Ties the device's clock to the host's anew: once per interval.
  void anchor();

  StepSnapshot snapshot() const;
  void restore(const StepSnapshot& snapshot);
  // Drops the graphs: sizes change for good.
  void drop_graphs();
  // Why steps of this size run eagerly although capture is on; empty when they are captured.
  const std::string& eager_reason() const { return eager_reason_; }
  i64 graph_count() const { return i64(graphs_.size()); }

  models::Model& model() { return *model_; }
  nn::ParameterArena& arena() { return *arena_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  const Tensor& state() const { return state_; }
  const StepOptions& options() const { return options_; }
  Device device() const { return options_.device; }
  const Tensor& input(const std::string& field) const;
  // What one step at the last graph's size moves, by the ledger.
  i64 steps() const { return steps_; }

 private:
  struct Graphs;
  struct Staging;
  struct Pending;

  models::Batch batch_of(i64 count) const;
  void forward_backward(const MicroBatch& micro);
  void write_inputs(const StepInputs& inputs);
  void optimize();
  void launch(cuda::Graph& graph, const ledger::Totals& totals);
  void begin_busy();
  void collect(Pending& pending, std::vector<StepOutcome>& to);

  StepOptions options_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<nn::ParameterArena> arena_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensor state_;
  std::vector<Tensor> inputs_;  // by field: [largest, ...]
  std::unique_ptr<Staging> staging_;
  std::map<i64, std::unique_ptr<Graphs>> graphs_;
  std::map<i64, int> seen_;  // eager steps of each usual size so far
  std::deque<std::unique_ptr<Pending>> pending_;
  std::unique_ptr<Pending> open_;  // the step that has begun
  std::vector<std::unique_ptr<Pending>> spare_;
  std::vector<Copy> copies_;
  std::string eager_reason_;
  measure::Anchor anchor_;
  std::unique_ptr<cuda::Event> anchor_event_;
  i64 steps_ = 0;
  int micro_batches_ = 0;  // of the open step
};

}  // namespace penstock::trainers
