#include "trainers/train.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/io/signals.h"
#include "framework/io/watchdog.h"
#include "framework/measure/clock.h"
#include "framework/measure/progress.h"
#include "framework/measure/trace_file.h"
#include "framework/tuner/online.h"
#include "trainers/auto_batch.h"
#include "trainers/device.h"
#include "trainers/evaluate.h"
#include "trainers/recorder.h"
#include "trainers/run_folder.h"
#include "trainers/run_state.h"

namespace penstock::trainers {
namespace {

using measure::monotonic_seconds;

// Has a multiple of `period` samples passed between two positions?
bool crossed(i64 before, i64 after, i64 period) {
  return period > 0 && after / period != before / period;
}

class Trainer {
 public:
  Trainer(const io::Config& config, const TrainOptions& options)
      : options_(options),
        setup_(make_setup(config)),
        folder_(options.out.empty() ? config.run.out : options.out, config) {}

  ExitCode run() {
    begin();
    while (!finished()) {
      step();
      observe();
      evaluate_when_due();
      save_when_due();
    }
    return end();
  }

 private:
  void begin();
  bool finished();
  void step();
  void observe();
  void evaluate_when_due();
  void save_when_due();
  ExitCode end();

  void find_batch_size();
  void build(i64 largest);
  void open_loader();
  StepInputs inputs(i64 position, i64 samples) const;
  double rate_factor(i64 position) const;
  void digest(const StepOutcome& outcome);
  void close_interval();
  void tune(const measure::StepAccount& account, const data::LoaderStats& stats);
  void apply(const tuner::Settings& settings);
  void evaluate_now();
  void save(bool last);
  void shrink_after(const OutOfMemory& error);
  RunState state_now();

  TrainOptions options_;
  Setup setup_;
  RunFolder folder_;
  RunState state_;
  optim::Schedule schedule_;
  i64 total_ = 0;
  std::optional<AutoBatch> found_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<Feed> feed_;
  std::unique_ptr<measure::Account> account_;
  std::unique_ptr<measure::BandwidthMeter> meter_;
  std::optional<measure::Ceilings> ceilings_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<io::CheckpointStore> store_;
  std::unique_ptr<io::Watchdog> watchdog_;
  std::unique_ptr<tuner::OnlineTuner> tuner_;
  std::optional<tuner::Interval> pending_interval_;
  // trace.json: a window of steps behind the first ones, which choose algorithms.
  std::unique_ptr<measure::TraceFile> trace_;
  std::unique_ptr<measure::TraceListener> trace_listener_;
  std::unique_ptr<io::SaveInterval> save_interval_;
  i64 largest_ = 1;  // micro-batch that the plan allows
  i64 before_step_ = 0;  // position
  bool evaluated_here_ = false;
  bool saved_here_ = false;
  bool target_reached_ = false;
  double started_ = 0;
  double interval_begin_ = 0;
  i64 interval_steps_ = 0;
  double save_stall_ = 0;
  std::string stop_reason_;
};

// ---- before the first step ----------------------------------------------------------------------

void Trainer::begin() {
  started_ = monotonic_seconds();
  apply_process_settings(setup_);
  watchdog_ = std::make_unique<io::Watchdog>(
      io::Watchdog::Options{.report_path = folder_.file("stall.json")});
  total_ = total_samples(setup_);
  const io::Config& c = setup_.config;

  std::optional<io::Checkpoint> checkpoint;
  if (options_.resume) {
    watchdog_->enter("read checkpoint");
    checkpoint = io::resume_newest(folder_.checkpoints());
    if (!checkpoint && *options_.resume != "auto") {
      throw StorageError(format("--resume: {} holds no checkpoint; use --resume=auto to start there",
                                folder_.checkpoints()));
    }
  }
  state_.shape = {.micro = c.train.batch, .accumulate = c.train.accumulate};
  const data::LoaderOptions loader = loader_options(setup_);
  state_.workers = loader.workers;
  state_.depth = loader.depth;
  state_.io = loader.io_concurrency;
  if (checkpoint) {
    const std::string path = checkpoint->path() + "/" + io::kRunFile;
    state_ = state_from_json(io::Json::parse(checkpoint->text(io::kRunFile), path), path);
  }
  recorder_ = std::make_unique<Recorder>(
      setup_, folder_, RecorderOptions{.json = options_.json, .quiet = options_.quiet},
      RecorderStart{.step = state_.step, .position = state_.position, .seconds = state_.seconds,
                    .total_samples = total_});
  if (c.auto_batch.policy != "off" && !state_.batch_chosen && !checkpoint) {
    find_batch_size();
  }
  schedule_ = schedule_of(setup_, c.train.batch * c.train.accumulate);
  build(state_.shape.micro);
  if (checkpoint) {
    state_ = load_run(*checkpoint, setup_, *runner_);
    log::info("resumed from {} at step {}, batch {} x {}", checkpoint->path(), state_.step,
              state_.shape.micro, state_.shape.accumulate);
  } else if (!c.model.weights.empty()) {
    const auto tensors = runner_->model().public_tensors();
    const io::LoadReport report =
        io::load_weights(io::SafetensorsFile(c.model.weights), tensors,
                         {.strip_prefix = setup_.model.name == "gpt" ? "transformer." : "",
                          .ignorable = [this](std::string_view name) {
                            return runner_->model().ignorable(name);
                          }});
    runner_->arena().refresh_low_precision();
    log::info("{}", report.text());
  }
  store_ = std::make_unique<io::CheckpointStore>(io::CheckpointStore::Options{
      .folder = folder_.checkpoints(),
      .run = folder_.identity(),
      .retention = {.keep_last = c.checkpoint.keep_last,
                    .keep_best = c.checkpoint.keep_best,
                    .better = setup_.classifies ? io::Better::kHigher : io::Better::kLower},
      .policy = {.patience = int(c.storage.patience),
                 .on_full = c.storage.on_full == "stop" ? io::OnFull::kStop : io::OnFull::kPause}});
  open_loader();
  meter_ = make_meter(setup_.device, ceilings_ ? &*ceilings_ : nullptr);
  meter_->set_live(true);
  meter_->start();
  const double now = monotonic_seconds();
  account_ = std::make_unique<measure::Account>(setup_.device.is_cuda()
                                                    ? measure::Account::Timeline::kDevice
                                                    : measure::Account::Timeline::kHost,
                                                now);
  interval_begin_ = now;
  const bool chosen = c.checkpoint.every.unit == io::Period::Unit::kSeconds;
  save_interval_ = std::make_unique<io::SaveInterval>(
      io::SaveInterval::Options{.seconds = chosen ? c.checkpoint.every.count : 0,
                                .budget = c.checkpoint.budget},
      now);
  recorder_->started(state_, *loader_, runner_->device());
  if (c.log.trace_steps > 0) {
    trace_ = std::make_unique<measure::TraceFile>(
        measure::TraceOptions{.first_step = state_.step + 10, .steps = c.log.trace_steps});
    trace_listener_ = std::make_unique<measure::TraceListener>(*trace_);
  }
}

void Trainer::find_batch_size() {
  watchdog_->enter("probe");
  const std::string& policy = setup_.config.auto_batch.policy;
  found_ = find_batch(setup_, {.stop = [] { return signals::stop_requested() != signals::Stop::kNone; },
                               .activity = [this](const std::string& what) {
                                 watchdog_->enter(what);
                                 recorder_->activity(what);
                               }});
  ceilings_ = found_->ceilings;
  const tuner::PolicyDecision answer = policy_for(setup_, *found_, policy);
  state_.shape = {.micro = answer.micro_batch,
                  .accumulate = answer.accumulate,
                  .total = answer.effective_batch};
  state_.rate_factor = answer.learning_rate_factor;
  state_.kappa = answer.beta_power;
  state_.norm_factor = policy == "hold" && answer.effective_batch > 0
                           ? double(answer.micro_batch) / double(answer.effective_batch)
                           : 1;
  state_.ramp_samples = answer.ramp_samples;
  state_.ramp_begin = state_.position;
  state_.batch_chosen = true;
  recorder_->decided(*found_, answer);
}

// Allocates everything for micro-batches of up to `largest` samples.
void Trainer::build(i64 largest) {
  const i64 room = largest + (setup_.batch_norm ? 1 : 0);
  const i64 capacity = device_capacity(setup_);
  const BatchPlan plan = plan_batch(setup_, largest);
  if (plan.total() > capacity) {
    const i64 fits = largest_fitting(setup_, capacity, largest);
    throw OutOfMemory(
        format("train.batch: {} needs {} and {} may be used; {}", largest, bytes_text(double(plan.total())),
               bytes_text(double(capacity)),
               fits > 0 ? format("the largest batch that fits is {}", fits)
                        : "not even one sample fits: use a smaller model or a lower precision"),
        {.requested = plan.total(), .available = capacity});
  }
  memory::set_limit(setup_.device, capacity);
  runner_.reset();
  StepOptions options = step_options(setup_, setup_.device, room);
  runner_ = std::make_unique<StepRunner>(setup_.model, options);
  largest_ = largest;
  recorder_->planned(plan);
}

void Trainer::open_loader() {
  data::LoaderOptions options = loader_options(setup_);
  options.batch = state_.shape.samples();
  options.workers = state_.workers;
  options.depth = state_.depth;
  options.io_concurrency = state_.io;
  options.start = state_.position;
  loader_ = std::make_unique<data::Loader>(setup_.train, options);
  if (state_.shape.micro > loader_->largest_batch()) {
    throw ConfigError(format("loader.max_bytes: the ring holds {} samples, and a batch of {} needs twice as "
                             "many; raise it",
                             loader_->slots(), state_.shape.micro));
  }
  watchdog_->set_inspector([this] {
    std::vector<io::Activity> all;
    for (const data::LoaderActivity& a : loader_->activities()) {
      all.push_back({a.stage, a.worker, a.sample, a.file, a.seconds});
    }
    return all;
  });
  feed_ = std::make_unique<Feed>(
      *loader_, *runner_,
      FeedOptions{.targets_per_sample = setup_.targets_per_sample,
                  .join_single = setup_.batch_norm,
                  .inputs = [this](i64 position, i64 samples) { return inputs(position, samples); }});
  const io::Config& c = setup_.config;
  const bool all_pinned = c.loader.workers && c.loader.depth && c.loader.io_concurrency;
  if (!c.auto_batch.online || (all_pinned && c.auto_batch.policy == "off")) {
    return;
  }
  tuner::OnlineOptions o;
  o.start = {.batch = state_.shape.samples(),
             .workers = loader_->workers(),
             .depth = loader_->depth(),
             .io = loader_->io_concurrency()};
  o.pin_batch = true;
  o.pin_workers = c.loader.workers.has_value();
  o.pin_depth = c.loader.depth.has_value();
  o.pin_io = c.loader.io_concurrency.has_value() || !setup_.train->needs_fetch();
  const int cores = machine::cores();
  o.max_workers = std::max(loader_->workers(), 4 * cores);
  // On the CPU the step uses all cores as well; the tuner finds what serves both best.
  o.loader_cores = double(cores);
  o.max_io = 256;
  o.ring_slots = loader_->slots();
  o.max_depth = int(std::clamp<i64>(loader_->slots() / std::max<i64>(1, o.start.batch) - 1, o.start.depth, 64));
  if ((o.start.depth + 1) * o.start.batch > o.ring_slots) {
    o.pin_depth = true;
    o.max_depth = o.start.depth;
    o.ring_slots = std::max<i64>(o.ring_slots, (o.start.depth + 1) * o.start.batch);
  }
  tuner_ = std::make_unique<tuner::OnlineTuner>(o);
}

// ---- the step -----------------------------------------------------------------------------------

double Trainer::rate_factor(i64 position) const {
  if (state_.ramp_samples <= 0 || position >= state_.ramp_begin + state_.ramp_samples) {
    return state_.rate_factor;
  }
  const double done = double(position - state_.ramp_begin) / double(state_.ramp_samples);
  return state_.ramp_from + (state_.rate_factor - state_.ramp_from) * done;
}

StepInputs Trainer::inputs(i64 position, i64 samples) const {
  const io::Config& c = setup_.config;
  StepInputs in;
  in.position = position;
  in.seed = std::uint64_t(c.run.seed);
  in.learning_rate =
      float(optim::learning_rate(schedule_, position, samples) * rate_factor(position));
  in.momentum = float(c.optimizer.momentum);
  in.beta1 = float(std::pow(c.optimizer.betas[0], state_.kappa));
  in.beta2 = float(std::pow(c.optimizer.betas[1], state_.kappa));
  in.norm_momentum = float(1 - std::pow(1 - 0.1, state_.norm_factor));
  return in;
}

bool Trainer::finished() {
  const io::Config& c = setup_.config;
  if (signals::stop_requested() != signals::Stop::kNone) {
    stop_reason_ = "signal";
  } else if (target_reached_) {
    stop_reason_ = "target";
  } else if (state_.position >= total_) {
    stop_reason_ = "done";
  } else if (c.train.max_steps > 0 && state_.step >= c.train.max_steps) {
    stop_reason_ = "max_steps";
  } else if (c.train.max_time > 0 &&
             state_.seconds + monotonic_seconds() - started_ >= c.train.max_time) {
    stop_reason_ = "max_time";
  }
  return !stop_reason_.empty();
}

void Trainer::step() {
  watchdog_->enter("step");
  watchdog_->throw_if_stalled();
  before_step_ = state_.position;
  const double begin = monotonic_seconds();
  Feed::Taken taken;
  if (trace_listener_) {
    trace_->begin_step(state_.step);
  }
  try {
    taken = feed_->step(state_.shape);
  } catch (const OutOfMemory& e) {
    shrink_after(e);
    return;
  }
  if (trace_listener_) {
    trace_->end_step();
    trace_->counter("batch", monotonic_seconds(), double(taken.samples));
    trace_->counter("workers", monotonic_seconds(), double(loader_->workers()));
    if (trace_->over()) {
      trace_listener_.reset();
      trace_->write(folder_.file("trace.json"));
    }
  }
  ++state_.step;
  state_.position = taken.next;
  ++interval_steps_;
  evaluated_here_ = saved_here_ = false;
  watchdog_->step_done(monotonic_seconds() - begin);
  for (const StepOutcome& outcome : runner_->outcomes()) {
    digest(outcome);
  }
  // The host runs ahead of a GPU, but never so far that a bad step is noticed late.
  runner_->limit_ahead(15);
}

// Somebody else took memory that the plan had counted on: the step is tried again with smaller
// micro-batches; the samples and the optimizer's step stay the same.
void Trainer::shrink_after(const OutOfMemory& error) {
  if (state_.shape.micro <= 1) {
    throw error;
  }
  const i64 samples = state_.shape.samples();
  const i64 micro = std::max<i64>(1, state_.shape.micro / 2);
  log::warning("memory ran out although the plan fits: something else took it. Going on with micro-batches of "
               "{} instead of {} ({})",
               micro, state_.shape.micro, error.what());
  runner_->abandon();
  runner_->outcomes(true);
  runner_->drop_graphs();
  feed_->drain();
  loader_->rewind(state_.position);
  memory::trim(setup_.device);
  state_.shape = {.micro = micro, .accumulate = (samples + micro - 1) / micro, .total = samples};
}

void Trainer::digest(const StepOutcome& o) {
  account_->ran(o.busy, o.samples);
  state_.samples += o.samples;
  ++state_.steps;
  if (o.skipped) {
    ++state_.skipped;
    ++state_.skipped_in_a_row;
    const io::Config& c = setup_.config;
    // A loss scale that looks for its level skips a few steps at first; that is no divergence.
    if (c.train.on_nan == "stop" && !(setup_.optimizer.scale_loss && o.loss_scale > 1)) {
      throw DivergedError(format("step {}: a gradient is not finite, and train.on_nan is stop; lower "
                                 "optimizer.learning_rate, or set optimizer.clip_norm",
                                 o.step));
    }
    if (state_.skipped_in_a_row > c.train.max_bad_steps &&
        !(setup_.optimizer.scale_loss && o.loss_scale > 1)) {
      throw DivergedError(format("step {}: {} steps in a row had gradients that are not finite "
                                 "(train.max_bad_steps is {}); lower optimizer.learning_rate",
                                 o.step, state_.skipped_in_a_row, c.train.max_bad_steps));
    }
    log::debug("step {}: a gradient is not finite; skipped (loss scale {})", o.step, o.loss_scale);
    return;
  }
  state_.skipped_in_a_row = 0;
  state_.loss_sum += o.loss * double(o.targets);
  state_.targets += o.targets;
  state_.correct += o.correct;
  state_.grad_norm = o.grad_norm;
}

// ---- intervals ----------------------------------------------------------------------------------

void Trainer::observe() {
  const io::Period& every = setup_.config.log.interval;
  const i64 period = samples_of(every, setup_, state_.shape.samples());
  const double now = monotonic_seconds();
  bool due = false;
  if (every.unit == io::Period::Unit::kSteps) {
    due = every.count >= 1 && state_.step % i64(every.count) == 0;
  } else if (period > 0) {
    due = crossed(before_step_, state_.position, period);
  } else if (every.unit == io::Period::Unit::kSeconds) {
    due = now - interval_begin_ >= every.count;
  } else {
    due = tuner::interval_is_complete(now - interval_begin_, interval_steps_);
  }
  if (due || state_.position >= total_) {
    close_interval();
  } else if (recorder_->due()) {
    recorder_->progress(state_, setup_, *loader_, nullptr);
  }
}

void Trainer::close_interval() {
  // Lines that count steps hold exactly those steps, whatever the device is doing.
  const bool exact = setup_.config.log.interval.unit == io::Period::Unit::kSteps ||
                     setup_.config.log.interval.unit == io::Period::Unit::kSamples ||
                     setup_.config.log.interval.unit == io::Period::Unit::kEpochs;
  for (const Feed::Wait& w : feed_->take_waits()) {
    account_->waited(w.span, w.split);
  }
  for (const StepRunner::Copy& copy : runner_->take_copies()) {
    account_->copied(copy.issued, copy.span);
  }
  for (const StepOutcome& outcome : runner_->outcomes(exact)) {
    digest(outcome);
  }
  const double now = monotonic_seconds();
  const measure::StepAccount account = account_->close();
  runner_->anchor();
  const data::LoaderStats stats = feed_->take_loader_stats();
  state_.bad_samples += stats.bad;
  state_.workers = loader_->workers();
  state_.depth = loader_->depth();
  state_.io = loader_->io_concurrency();
  const auto dram = meter_->over(interval_begin_, now);
  const double rate = optim::learning_rate(schedule_, before_step_, state_.position - before_step_) *
                      rate_factor(before_step_);
  recorder_->interval(state_, setup_, *loader_, *runner_,
                      {.account = account, .dram = dram, .loader = stats, .learning_rate = rate});
  const double log_end = monotonic_seconds();
  account_->spent(measure::OtherKind::kLog, {now, log_end});
  state_.loss_sum = 0;
  state_.targets = state_.correct = state_.samples = state_.steps = 0;
  interval_begin_ = now;
  interval_steps_ = 0;
  tune(account, stats);
}

void Trainer::tune(const measure::StepAccount& account, const data::LoaderStats& stats) {
  if (!tuner_ || account.steps < 1 || account.wall <= 0) {
    return;
  }
  tuner::Interval in;
  in.seconds = account.wall - account.other_total();
  in.steps = account.steps;
  in.samples = account.samples;
  in.stall_seconds = account.data_wait;
  in.step_seconds = std::max(1e-9, (in.seconds - account.data_wait) / double(account.steps));
  in.service_seconds = stats.samples > 0 ? stats.service_seconds / double(stats.samples) : 0;
  // On a busy machine what is neither on a CPU nor blocked is a wait for a core; without fetches in the
  // worker all of it is.
  in.run_delay_share = stats.service_seconds > 0 && !setup_.train->needs_fetch() &&
                               setup_.config.data.blocking <= 0
                           ? std::max(0.0, 1 - stats.cpu_seconds / stats.service_seconds)
                           : 0;
  in.fetch_seconds = stats.fetched > 0 ? stats.fetch_seconds / double(stats.fetched) : 0;
  in.queue_low = stats.low;
  in.queue_high = stats.high;
  if (const auto dram = meter_->latest(monotonic_seconds())) {
    in.dram_share = dram->share_of_achievable;
  }
  if (setup_.device.is_cuda() && account.split_age) {
    in.launch_share = account.launch_gap / account.wall;
  }
  in.disturbed = in.seconds <= 0.2 * account.wall;
  if (in.seconds <= 0) {
    return;
  }
  // Lines of the log may be closer together than the tuner's intervals.
  if (pending_interval_) {
    in = tuner::merged(*pending_interval_, in);
  }
  if (!tuner::interval_is_complete(in.seconds, in.steps)) {
    pending_interval_ = in;
    return;
  }
  pending_interval_.reset();
  const double begin = monotonic_seconds();
  const tuner::Action action = tuner_->observe(in);
  if (action.changed) {
    apply(tuner_->settings());
    recorder_->tuned(state_, action.reason);
  }
  recorder_->decisions(tuner_->take_records(), state_);
  account_->spent(measure::OtherKind::kTuner, {begin, monotonic_seconds()});
}

void Trainer::apply(const tuner::Settings& s) {
  loader_->set_workers(s.workers);
  loader_->set_depth(s.depth);
  loader_->set_io_concurrency(s.io);
  state_.workers = s.workers;
  state_.depth = s.depth;
  state_.io = s.io;
}

// ---- evaluation and checkpoints -----------------------------------------------------------------

void Trainer::evaluate_when_due() {
  const io::Period& every = setup_.config.evaluation.every;
  if (!setup_.validation || every.unit == io::Period::Unit::kNever || stop_reason_ == "signal") {
    return;
  }
  const i64 period = every.unit == io::Period::Unit::kAuto
                         ? setup_.train->size()
                         : samples_of(every, setup_, state_.shape.samples());
  if (crossed(before_step_, state_.position, period)) {
    evaluate_now();
  }
}

void Trainer::evaluate_now() {
  const double begin = monotonic_seconds();
  for (const StepOutcome& outcome : runner_->outcomes(true)) {
    digest(outcome);
  }
  recorder_->activity("evaluating");
  watchdog_->enter("evaluation");
  const io::Config& c = setup_.config;
  const i64 most = runner_->options().largest;
  const auto e = evaluate(setup_, *runner_,
                          {.batch = c.evaluation.batch > 0 ? std::min(c.evaluation.batch, most) : most,
                           .samples = c.evaluation.samples,
                           .workers = std::max(1, state_.workers),
                           .stop = [this] {
                             watchdog_->enter("evaluation");
                             return signals::stop_requested() != signals::Stop::kNone;
                           }});
  const double end = monotonic_seconds();
  account_->spent(measure::OtherKind::kEvaluation, {begin, end});
  if (!e) {
    return;
  }
  evaluated_here_ = true;
  ++state_.evaluations;
  const double metric = setup_.classifies ? e->accuracy.value_or(0) : e->loss;
  state_.last_metric = metric;
  const io::Better better = setup_.classifies ? io::Better::kHigher : io::Better::kLower;
  if (io::improves(metric, state_.best, better)) {
    state_.best = metric;
  }
  if (c.train.target != 0 && (setup_.classifies ? metric >= c.train.target : metric <= c.train.target)) {
    target_reached_ = true;
    state_.seconds_to_target = state_.seconds + end - started_;
  }
  recorder_->evaluated(state_, *e);
}

void Trainer::save_when_due() {
  const io::Period& every = setup_.config.checkpoint.every;
  const double now = monotonic_seconds();
  bool due = signals::take_save_request();
  using Unit = io::Period::Unit;
  switch (every.unit) {
    case Unit::kNever: break;
    case Unit::kSeconds: due = due || save_interval_->due(now); break;
    case Unit::kAuto:
      due = due || save_interval_->due(now) ||
            (crossed(before_step_, state_.position, setup_.train->size()) && save_interval_->affordable(now));
      break;
    default:
      due = due || (crossed(before_step_, state_.position, samples_of(every, setup_, state_.shape.samples())) ||
                    (every.unit == Unit::kSteps && every.count >= 1 && state_.step % i64(every.count) == 0));
  }
  if (due && !store_->busy()) {
    save(false);
  }
  if (const auto outcome = store_->settle()) {
    recorder_->saved(*outcome);
  }
}

RunState Trainer::state_now() {
  RunState s = state_;
  s.seconds += monotonic_seconds() - started_;
  return s;
}

void Trainer::save(bool last) {
  const double begin = monotonic_seconds();
  watchdog_->enter("save");
  for (const StepOutcome& outcome : runner_->outcomes(true)) {
    digest(outcome);
  }
  ++state_.saves;
  auto snapshot = store_->snapshot();
  add_run(*snapshot, setup_, *runner_, state_now());
  if (last) {
    recorder_->saved(store_->save_now(std::move(snapshot), true));
  } else {
    store_->save_async(std::move(snapshot));
  }
  const double end = monotonic_seconds();
  account_->spent(measure::OtherKind::kCheckpoint, {begin, end});
  save_interval_->saved(end, end - begin);
  saved_here_ = true;
}

ExitCode Trainer::end() {
  for (const StepOutcome& outcome : runner_->outcomes(true)) {
    digest(outcome);
  }
  feed_->drain();
  if (trace_listener_) {
    trace_listener_.reset();
    trace_->write(folder_.file("trace.json"));
  }
  if (state_.steps > 0) {
    close_interval();
  }
  const signals::Stop stop = signals::stop_requested();
  if (setup_.validation && !evaluated_here_ && stop == signals::Stop::kNone && state_.step > 0 &&
      setup_.config.evaluation.every.unit != io::Period::Unit::kNever) {
    evaluate_now();
  }
  if (setup_.config.checkpoint.every.unit != io::Period::Unit::kNever || stop != signals::Stop::kNone) {
    if (const auto outcome = store_->wait()) {
      recorder_->saved(*outcome);
    }
    save(true);
  }
  meter_->stop();
  recorder_->finished(state_now(), setup_, stop_reason_, found_ ? &*found_ : nullptr, *loader_);
  return stop == signals::Stop::kNone ? ExitCode::kDone : signals::exit_code(stop);
}

}  // namespace

ExitCode train(const io::Config& config, const TrainOptions& options) {
  try {
    Trainer trainer(config, options);
    return trainer.run();
  } catch (const StepStopped&) {
    // A signal inside the probe: nothing was trained, so nothing is to be saved.
    return signals::exit_code(signals::stop_requested());
  }
}

}  // namespace penstock::trainers
