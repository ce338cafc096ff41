#include "trainers/step.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"
#include "framework/kernels/choice.h"
#include "framework/measure/clock.h"

namespace penstock::trainers {
namespace {

using measure::monotonic_seconds;

// The host may run this many micro-batches ahead of the device.
constexpr std::size_t kRing = 16;
// Graphs of at most this many micro-batch sizes are kept.
constexpr std::size_t kGraphSizes = 4;

// Host memory that the device can copy from and to without waiting.
class PinnedBlock {
 public:
  explicit PinnedBlock(std::size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes_))) {
    check(data_ != nullptr, "step: no {} of host memory", bytes_text(double(bytes_)));
    std::memset(data_, 0, bytes_);
    pinned_ = cuda::register_host(data_, i64(bytes_));
  }
  ~PinnedBlock() {
    if (pinned_) {
      cuda::unregister_host(data_);
    }
    std::free(data_);
  }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
  bool pinned_ = false;
};

struct AnchorPoint {
  cuda::Event event{true};
  double host = 0;
  double host_of(const cuda::Event& e) const {
    return host + double(e.milliseconds_since(event)) * 1e-3;
  }
};

}  // namespace

struct StepRunner::Graphs {
  cuda::Graph first, next;
  ledger::Totals first_totals, next_totals;
  bool first_seen = false, next_seen = false;
};

// What a GPU needs beside the model: two staging buffers per field, pinned rings, events.
struct StepRunner::Staging {
  struct Buffer {
    std::vector<Tensor> fields;
    cuda::Event copied;  // the host memory has been read
    cuda::Event free;    // the fixed input has taken the contents
    bool used = false;
  };
  struct Ticket {
    i64 number = 0;
    double issued = 0;
    cuda::Event begin{true}, end{true};
    std::shared_ptr<AnchorPoint> anchor;
  };
  std::array<Buffer, 2> buffers;
  i64 loads = 0;
  std::deque<std::unique_ptr<Ticket>> tickets;
  std::vector<std::unique_ptr<Ticket>> spare;
  PinnedBlock inputs{kRing * sizeof(StepInputs)};
  std::array<cuda::Event, kRing> inputs_read;
  i64 inputs_written = 0;
  PinnedBlock states{2 * kRing * sizeof(StepState)};
  i64 states_read = 0;
  std::shared_ptr<AnchorPoint> anchor;

  // The optimizer's graph serves every batch size.
  cuda::Graph optimizer;
  ledger::Totals optimizer_totals;
  bool optimizer_seen = false;
};

struct StepRunner::Pending {
  struct Pair {
    cuda::Event begin{true}, end{true};
    std::shared_ptr<AnchorPoint> anchor;
  };
  StepOutcome outcome;
  std::vector<std::unique_ptr<Pair>> pairs;  // by micro-batch; used of them are of this step
  std::size_t used = 0;
  std::optional<cuda::Event> done;  // on a GPU
  const StepState* state = nullptr;
};

StepRunner::StepRunner(const models::ModelOptions& model, const StepOptions& options)
    : options_(options), model_(models::build_model(model)) {
  arena_ = std::make_unique<nn::ParameterArena>(
      *model_,
      nn::ArenaOptions{.device = options_.device,
                       .compute = options_.compute,
                       .moments = options_.training ? optim::moments_of(options_.optimizer.kind) : 0,
                       .seed = options_.seed,
                       .gradients = options_.training});
  if (options_.training) {
    optimizer_ = std::make_unique<optim::Optimizer>(*arena_, options_.optimizer);
  }
  state_ = make_step_state(options_.device);
  if (options_.optimizer.scale_loss && !options_.device.is_meta()) {
    StepState initial;
    initial.loss_scale = 65536;
    state_.load_host(&initial);
  }
  const auto slots = [&] {
    std::vector<Tensor> to;
    for (const data::Field& f : options_.fields) {
      std::vector<i64> dims = {options_.largest};
      for (int i = 0; i < f.shape.rank(); ++i) {
        dims.push_back(f.shape[i]);
      }
      to.push_back(Tensor::empty(Shape(std::span<const i64>(dims)), f.dtype, options_.device,
                                 MemoryClass::kBatch));
    }
    return to;
  };
  inputs_ = slots();
  const bool on_gpu = options_.device.models == DeviceType::kCuda;
  if (on_gpu) {
    std::array<std::vector<Tensor>, 2> staged = {slots(), slots()};
    if (options_.device.is_cuda()) {
      staging_ = std::make_unique<Staging>();
      for (std::size_t i = 0; i < 2; ++i) {
        staging_->buffers[i].fields = std::move(staged[i]);
      }
      anchor();
    } else {
      // The plan counts them as the device does, for as long as the runner lives.
      for (auto& s : staged) {
        inputs_.insert(inputs_.end(), s.begin(), s.end());
      }
    }
  }
}

StepRunner::~StepRunner() {
  if (options_.device.is_cuda()) {
    try {
      cuda::synchronize(cuda::compute_stream());
      cuda::synchronize(cuda::copy_stream());
    } catch (const Error&) {
      // A lost device: there is nothing to wait for.
    }
  }
}

const Tensor& StepRunner::input(const std::string& field) const {
  for (std::size_t i = 0; i < options_.fields.size(); ++i) {
    if (options_.fields[i].name == field) {
      return inputs_[i];
    }
  }
  fail(format("step: the data set has no field \"{}\"", field));
}

// ---- input --------------------------------------------------------------------------------------

i64 StepRunner::load(const HostBatch& batch) {
  check(batch.count <= options_.largest, "step: a micro-batch of {} samples, planned for {}",
        batch.count, options_.largest);
  const trace::Op op("load_input", trace::Phase::kInput);
  if (!staging_) {
    begin_busy();  // on the CPU the copy is part of the step
    for (std::size_t f = 0; f < batch.fields.size(); ++f) {
      auto* to = static_cast<std::byte*>(inputs_[f].raw());
      for (const data::Rows& rows : batch.fields[f]) {
        const i64 bytes = rows.count * options_.fields[f].bytes();
        parallel::run(bytes, i64{1} << 20, [&](i64 begin, i64 end) {
          std::memcpy(to + begin, rows.data + begin, std::size_t(end - begin));
        });
        to += bytes;
      }
      ledger::bytes(MemoryClass::kBatch, double(batch.count * options_.fields[f].bytes()),
                    double(batch.count * options_.fields[f].bytes()));
    }
    return 0;
  }
  Staging& s = *staging_;
  Staging::Buffer& buffer = s.buffers[std::size_t(s.loads % 2)];
  const cuda::Stream stream = cuda::copy_stream();
  if (buffer.used) {
    buffer.free.wait_on(stream);
  }
  std::unique_ptr<Staging::Ticket> ticket;
  if (s.spare.empty()) {
    ticket = std::make_unique<Staging::Ticket>();
  } else {
    ticket = std::move(s.spare.back());
    s.spare.pop_back();
  }
  ticket->number = ++s.loads;
  ticket->issued = monotonic_seconds();
  ticket->anchor = s.anchor;
  ticket->begin.record(stream);
  for (std::size_t f = 0; f < batch.fields.size(); ++f) {
    auto* to = static_cast<std::byte*>(buffer.fields[f].raw());
    for (const data::Rows& rows : batch.fields[f]) {
      const i64 bytes = rows.count * options_.fields[f].bytes();
      if (bytes > 0) {
        cuda::copy_async(to, rows.data, bytes, stream);
        to += bytes;
      }
    }
  }
  ticket->end.record(stream);
  buffer.copied.record(stream);
  buffer.used = true;
  const i64 number = ticket->number;
  s.tickets.push_back(std::move(ticket));
  return number;
}

bool StepRunner::copied(i64 ticket) {
  if (!staging_) {
    return true;
  }
  auto& tickets = staging_->tickets;
  while (!tickets.empty() && tickets.front()->end.done()) {
    Staging::Ticket& t = *tickets.front();
    copies_.push_back(
        {t.issued, {t.anchor->host_of(t.begin), t.anchor->host_of(t.end)}});
    staging_->spare.push_back(std::move(tickets.front()));
    tickets.pop_front();
  }
  return tickets.empty() || tickets.front()->number > ticket;
}

void StepRunner::wait_copied(i64 ticket) {
  while (!copied(ticket)) {
    staging_->tickets.front()->end.synchronize();
  }
}

std::vector<StepRunner::Copy> StepRunner::take_copies() {
  copied(0);
  return std::exchange(copies_, {});
}

void StepRunner::write_inputs(const StepInputs& inputs) {
  if (!staging_) {
    if (!options_.device.is_meta()) {
      state_.part(0, {i64(sizeof(StepInputs))}).load_host(&inputs);
    }
    return;
  }
  Staging& s = *staging_;
  const std::size_t slot = std::size_t(s.inputs_written) % kRing;
  if (s.inputs_written >= i64(kRing)) {
    s.inputs_read[slot].synchronize();
  }
  std::byte* entry = s.inputs.data() + slot * sizeof(StepInputs);
  std::memcpy(entry, &inputs, sizeof(StepInputs));
  cuda::copy_async(state_.raw(), entry, sizeof(StepInputs), cuda::compute_stream());
  s.inputs_read[slot].record(cuda::compute_stream());
  ++s.inputs_written;
}

models::Batch StepRunner::batch_of(i64 count) const {
  models::Batch batch;
  for (std::size_t i = 0; i < options_.fields.size(); ++i) {
    const std::string& name = options_.fields[i].name;
    const Tensor rows = inputs_[i].rows(0, count);
    if (name == "label" || name == "target") {
      batch.target = rows.view({rows.numel()});
    } else if (name == "length") {
      batch.lengths = rows.view({rows.numel()});
    } else {
      batch.input = rows;
    }
  }
  return batch;
}

// ---- the step -----------------------------------------------------------------------------------

void StepRunner::begin_busy() {
  if (!open_) {
    if (spare_.empty()) {
      open_ = std::make_unique<Pending>();
    } else {
      open_ = std::move(spare_.back());
      spare_.pop_back();
      open_->used = 0;
      open_->outcome = {};
    }
    micro_batches_ = 0;
    open_->outcome.busy.begin = monotonic_seconds();
  }
  if (!staging_) {
    return;
  }
  Staging& s = *staging_;
  const cuda::Stream stream = cuda::compute_stream();
  Staging::Buffer& buffer = s.buffers[std::size_t((s.loads + 1) % 2)];
  if (buffer.used) {
    buffer.copied.wait_on(stream);
  }
  if (open_->used == open_->pairs.size()) {
    open_->pairs.push_back(std::make_unique<Pending::Pair>());
  }
  Pending::Pair& pair = *open_->pairs[open_->used++];
  pair.anchor = s.anchor;
  pair.begin.record(stream);
}

void StepRunner::forward_backward(const MicroBatch& micro) {
  const StepStateScope current(state_);
  const amp::Scope precision(options_.compute);
  StepScope scope(options_.device);
  {
    if (micro.first) {
      optimizer_->begin_step(state_);
      arena_->begin_step();
    }
    const ops::LossResult result =
        model_->loss(batch_of(micro.count), ops::Reduction::kStep);
    optim::add_loss(state_, result.loss, result.correct);
    backward(result.loss, {.accumulate = !micro.first});
    if (micro.first) {
      arena_->finish_gradients();
    }
  }
  scope.close();
}

void StepRunner::run(const MicroBatch& micro) {
  if (options_.device.is_meta()) {
    forward_backward(micro);
    return;
  }
  if (staging_ || !open_) {
    begin_busy();
  }
  ++micro_batches_;
  write_inputs(micro.inputs);
  if (staging_ && staging_->loads > 0) {
    const trace::Op op("bring_input", trace::Phase::kInput);
    Staging::Buffer& buffer = staging_->buffers[std::size_t((staging_->loads + 1) % 2)];
    for (std::size_t f = 0; f < options_.fields.size(); ++f) {
      const i64 bytes = micro.count * options_.fields[f].bytes();
      cuda::copy_async(inputs_[f].raw(), buffer.fields[f].raw(), bytes, cuda::compute_stream());
      ledger::bytes(MemoryClass::kBatch, double(bytes), double(bytes));
    }
    buffer.free.record(cuda::compute_stream());
  }
  if (!micro.usual) {
    const kernels::UntimedScope untimed;
    forward_backward(micro);
    return;
  }
  if (!options_.capture || !options_.device.is_cuda() || !eager_reason_.empty()) {
    forward_backward(micro);
    return;
  }
  auto& graphs = graphs_[micro.count];
  if (!graphs) {
    if (graphs_.size() > kGraphSizes) {
      const auto victim = std::find_if(graphs_.begin(), graphs_.end(), [&](const auto& g) {
        return g.first != micro.count;
      });
      cuda::synchronize(cuda::compute_stream());
      graphs_.erase(victim);
    }
    graphs_[micro.count] = std::make_unique<Graphs>();
  }
  Graphs& g = *graphs_[micro.count];
  cuda::Graph& graph = micro.first ? g.first : g.next;
  ledger::Totals& totals = micro.first ? g.first_totals : g.next_totals;
  bool& seen = micro.first ? g.first_seen : g.next_seen;
  if (graph.ready()) {
    launch(graph, totals);
    ledger::add(totals);
    return;
  }
  if (!seen) {
    forward_backward(micro);
    seen = true;
    return;
  }
  const ledger::Totals before = ledger::totals();
  try {
    graph.begin();
    forward_backward(micro);
    graph.end();
  } catch (const OutOfMemory&) {
    graph.abandon();
    throw;
  } catch (const Error& e) {
    graph.abandon();
    eager_reason_ = e.what();
    log::warning("capture: steps run eagerly: {}", eager_reason_);
    forward_backward(micro);
    return;
  }
  totals = ledger::totals() - before;
  launch(graph, totals);
}

void StepRunner::launch(cuda::Graph& graph, const ledger::Totals& /*totals*/) {
  graph.launch(cuda::compute_stream());
}

void StepRunner::optimize() {
  const StepStateScope current(state_);
  StepScope scope(options_.device);
  optimizer_->step(state_);
  scope.close();
}

void StepRunner::finish(i64 samples, i64 targets) {
  ++steps_;
  if (options_.device.is_meta()) {
    optimize();
    return;
  }
  check(open_ != nullptr, "step: finish() without a micro-batch");
  Pending& p = *open_;
  if (!staging_) {
    optimize();
    p.outcome.busy.end = monotonic_seconds();
  } else {
    Staging& s = *staging_;
    const bool capture = options_.capture && eager_reason_.empty();
    if (capture && s.optimizer.ready()) {
      s.optimizer.launch(cuda::compute_stream());
      ledger::add(s.optimizer_totals);
    } else if (capture && s.optimizer_seen) {
      const ledger::Totals before = ledger::totals();
      try {
        s.optimizer.begin();
        optimize();
        s.optimizer.end();
        s.optimizer_totals = ledger::totals() - before;
        s.optimizer.launch(cuda::compute_stream());
      } catch (const Error& e) {
        s.optimizer.abandon();
        eager_reason_ = e.what();
        log::warning("capture: steps run eagerly: {}", eager_reason_);
        optimize();
      }
    } else {
      optimize();
      s.optimizer_seen = true;
    }
    p.pairs[p.used - 1]->end.record(cuda::compute_stream());
  }
  p.outcome.step = steps_;
  p.outcome.samples = samples;
  p.outcome.targets = targets;
  if (staging_) {
    Staging& s = *staging_;
    // A slot is free again once its step has been collected.
    limit_ahead(i64(kRing));
    const std::size_t slot = std::size_t(s.states_read++) % (2 * kRing);
    auto* to = reinterpret_cast<StepState*>(s.states.data() + slot * sizeof(StepState));
    cuda::copy_async(to, state_.raw(), sizeof(StepState), cuda::compute_stream());
    p.state = to;
    if (!p.done) {
      p.done.emplace();
    }
    p.done->record(cuda::compute_stream());
  } else {
    p.state = step_state_pointer(state_);
    std::vector<StepOutcome> out;
    collect(p, out);
    p.outcome = out.front();
    p.state = nullptr;
  }
  pending_.push_back(std::move(open_));
}

void StepRunner::collect(Pending& p, std::vector<StepOutcome>& to) {
  if (p.state != nullptr) {
    const StepState& s = *p.state;
    p.outcome.loss = p.outcome.targets > 0 ? double(s.loss_sum) / double(p.outcome.targets) : 0.0;
    p.outcome.correct = s.correct;
    p.outcome.grad_norm = s.grad_norm;
    p.outcome.loss_scale = s.loss_scale;
    p.outcome.skipped = s.found_inf != 0;
    if (staging_ && p.used > 0) {
      p.outcome.busy.begin = p.pairs[0]->anchor->host_of(p.pairs[0]->begin);
      p.outcome.busy.end = p.pairs[p.used - 1]->anchor->host_of(p.pairs[p.used - 1]->end);
    }
  }
  to.push_back(p.outcome);
}

void StepRunner::abandon() { open_.reset(); }

std::vector<StepOutcome> StepRunner::outcomes(bool all) {
  std::vector<StepOutcome> known;
  while (!pending_.empty()) {
    Pending& p = *pending_.front();
    if (staging_) {
      if (all) {
        p.done->synchronize();
      } else if (!p.done->done()) {
        break;
      }
    }
    collect(p, known);
    spare_.push_back(std::move(pending_.front()));
    pending_.pop_front();
  }
  return known;
}

void StepRunner::limit_ahead(i64 ahead) {
  if (!staging_) {
    return;
  }
  if (i64(pending_.size()) > ahead) {
    pending_[pending_.size() - 1 - std::size_t(ahead)]->done->synchronize();
  }
}

void StepRunner::anchor() {
  if (!staging_) {
    return;
  }
  auto point = std::make_shared<AnchorPoint>();
  point->event.record(cuda::copy_stream());
  point->event.synchronize();
  point->host = monotonic_seconds();
  staging_->anchor = std::move(point);
}

// ---- evaluation ---------------------------------------------------------------------------------

StepRunner::Evaluated StepRunner::evaluate(i64 count) {
  const NoGrad no_grad;
  const StepStateScope current(state_);
  const amp::Scope precision(options_.compute);
  open_.reset();  // load() has opened a step that this is not
  Evaluated e;
  if (staging_) {
    Staging::Buffer& buffer = staging_->buffers[std::size_t((staging_->loads + 1) % 2)];
    buffer.copied.wait_on(cuda::compute_stream());
    for (std::size_t f = 0; f < options_.fields.size(); ++f) {
      cuda::copy_async(inputs_[f].raw(), buffer.fields[f].raw(),
                       count * options_.fields[f].bytes(), cuda::compute_stream());
    }
    buffer.free.record(cuda::compute_stream());
  }
  model_->set_training(false);
  StepScope scope(options_.device);
  {
    const ops::LossResult r = model_->loss(batch_of(count), ops::Reduction::kSum);
    if (!options_.device.is_meta()) {
      e.loss_sum = r.loss.item();
      e.correct = r.correct.defined() ? i64(r.correct.item()) : 0;
    }
  }
  scope.close();
  model_->set_training(true);
  return e;
}

std::vector<float> StepRunner::predict(i64 count, Shape* shape) {
  const NoGrad no_grad;
  const StepStateScope current(state_);
  const amp::Scope precision(options_.compute);
  model_->set_training(false);
  std::vector<float> values;
  StepScope scope(options_.device);
  {
    const Tensor logits = model_->forward(batch_of(count));
    values = logits.values<float>();
    if (shape != nullptr) {
      *shape = logits.shape();
    }
  }
  scope.close();
  model_->set_training(true);
  return values;
}

// ---- snapshots ----------------------------------------------------------------------------------

StepSnapshot StepRunner::snapshot() const {
  const PersistentScope persistent;
  StepSnapshot s;
  s.masters = arena_->masters().to(kCpu);
  for (const Tensor& m : arena_->moments()) {
    s.moments.push_back(m.to(kCpu));
  }
  if (arena_->buffers().defined()) {
    s.buffers = arena_->buffers().to(kCpu);
    s.shadows = arena_->buffer_shadows().to(kCpu);
  }
  s.state = state_.to(kCpu);
  s.steps = steps_;
  return s;
}

void StepRunner::restore(const StepSnapshot& s) {
  outcomes(true);
  arena_->masters().copy_from(s.masters);
  for (std::size_t i = 0; i < s.moments.size(); ++i) {
    arena_->moments()[i].copy_from(s.moments[i]);
  }
  if (s.buffers.defined()) {
    arena_->buffers().copy_from(s.buffers);
    arena_->buffer_shadows().copy_from(s.shadows);
  }
  state_.copy_from(s.state);
  steps_ = s.steps;
  arena_->refresh_low_precision();
}

void StepRunner::drop_graphs() {
  if (staging_) {
    outcomes(true);
    cuda::synchronize(cuda::compute_stream());
  }
  graphs_.clear();
}

}  // namespace penstock::trainers
