#include "trainers/recorder.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/measure/clock.h"
#include "framework/measure/text_file.h"
#include "trainers/version.h"

namespace penstock::trainers {
namespace {

using io::Json;
using measure::monotonic_seconds;

Json account_json(const measure::StepAccount& a) {
  Json j = Json::object();
  j.set("wall", a.wall).set("data_wait", a.data_wait);
  j.set("wait", Json::object()
                    .set("fetch", a.wait.fetch)
                    .set("decode", a.wait.decode)
                    .set("queueing", a.wait.queueing)
                    .set("scheduling", a.wait.scheduling)
                    .set("order", a.wait.order));
  j.set("h2d_exposed", a.h2d_exposed).set("launch_gap", a.launch_gap).set("kernels", a.kernels);
  Json other = Json::object();
  for (std::size_t i = 0; i < measure::kOtherKinds; ++i) {
    other.set(measure::name_of(measure::OtherKind(i)), a.other[i]);
  }
  j.set("other", std::move(other)).set("unaccounted", a.unaccounted).set("hidden_wait", a.hidden_wait);
  j.set("memcpy_total", a.memcpy_total).set("memcpy_exposed", a.memcpy_exposed);
  return j;
}

Json dram_json(const std::optional<measure::Bandwidth>& b) {
  if (!b || b->source == measure::Source::kNone) {
    return {};
  }
  return Json(Json::object()
                  .set("bytes_per_second", b->bytes_per_second)
                  .set("share_of_achievable", b->share_of_achievable)
                  .set("share_of_theoretical", b->share_of_theoretical)
                  .set("source", measure::name_of(b->source))
                  .set("window_ms", b->window_ms));
}

Json verdict_json(const measure::Verdict& v) {
  Json j = Json::object();
  j.set("limit", v.name()).set("headline", v.headline).set("gain", v.gain);
  Json evidence = Json::array();
  for (const measure::Number& n : v.evidence) {
    evidence.push(Json::object().set("name", n.name).set("value", n.value).set("raw", n.raw));
  }
  Json remedies = Json::array();
  for (const measure::Remedy& r : v.remedies) {
    remedies.push(
        Json::object().set("key", r.key).set("value", r.value).set("why", r.why).set("gain", r.gain));
  }
  Json advice = Json::array();
  for (const std::string& a : v.advice) {
    advice.push(a);
  }
  return j.set("evidence", std::move(evidence)).set("remedies", std::move(remedies)).set("advice", std::move(advice));
}

std::string model_text(const Setup& s) { return s.model.name + " on " + s.config.data.name; }

}  // namespace

Recorder::Recorder(const Setup& setup, const RunFolder& folder, const RecorderOptions& options,
                   const RecorderStart& start)
    : setup_(setup),
      folder_(folder),
      options_(options),
      start_(start),
      begin_(monotonic_seconds()),
      metrics_({.path = folder.file("metrics.jsonl")},
               {.run = folder.identity(), .step = start.step, .position = start.position}),
      decisions_({.path = folder.file("decisions.jsonl")},
                 {.run = folder.identity(), .step = start.step, .position = start.position}),
      line_({.quiet = options.quiet}) {
  io::replace_file(folder.file("config.resolved.yaml"), io::to_yaml(setup.config));
  log::set_file(folder.file("log.txt"));
  if (setup.config.log.tensorboard) {
    events_ = std::make_unique<io::EventWriter>(folder.path(), start.step);
    events_->text("config", "```yaml\n" + io::to_yaml(setup.config) + "```", start.step);
  }
  report_.title = run_name(setup.config);
  report_.subtitle = model_text(setup) + ", " + device_name(setup.device);
  report_.config = io::to_yaml(setup.config, true);
  report_.facts = {{"device", device_name(setup.device)},
                   {"precision", measure::name_of(setup.precision)},
                   {"training samples", std::to_string(setup.train->size())},
                   {"version", std::string("penstock ") + kVersion}};
}

Recorder::~Recorder() { log::set_file(""); }

void Recorder::planned(const BatchPlan& plan) { plan_ = plan; }

void Recorder::decided(const AutoBatch& found, const tuner::PolicyDecision& answer) {
  ceilings_ = found.ceilings;
  cost_ = found.cost;
  largest_ = found.largest_fitting;
  knee_ = found.probe.knee;
  elasticity_ = found.probe.elasticity;
  std::string words = tuner::explain(found.probe);
  if (found.supply > 0) {
    words += format("\nThe loader alone gives {} samples/s with {} workers; the step takes at most {}.",
                    count_text(found.supply), found.supply_workers, count_text(found.probe.best_rate));
    if (found.supply < 0.95 * found.probe.best_rate) {
      words += format(" From batch {} on it is the loader that limits.", found.end_to_end_knee);
    }
  }
  if (!answer.reason.empty()) {
    words += "\n" + answer.reason;
  }
  for (const std::string& w : answer.warnings) {
    words += "\n" + w;
  }
  words += format("\nDeciding took {}, plus {} in which the libraries chose algorithms; {} failed allocations.",
                  seconds_text(found.seconds - found.plan_seconds), seconds_text(found.plan_seconds),
                  found.failed_allocations);
  std::string line;
  for (const char c : words + "\n") {
    if (c == '\n') {
      if (!line.empty()) {
        log::info("auto-batch: {}", line);
        report_.summary.push_back(line);
      }
      line.clear();
    } else {
      line += c;
    }
  }
  report_.curves = {found.curve};
  report_.curves[0].chosen = answer.micro_batch;
  for (const tuner::Record& r : found.records) {
    decisions_.write(r.to_line());
  }
  auto_batch_ = Json::object();
  auto_batch_.set("knee", found.probe.knee)
      .set("low", found.probe.knee_low)
      .set("high", found.probe.knee_high)
      .set("batch", answer.effective_batch)
      .set("micro", answer.micro_batch)
      .set("accumulate", answer.accumulate)
      .set("best", found.probe.best_batch)
      .set("best_rate", found.probe.best_rate)
      .set("half_batch", found.probe.fit.half_batch())
      .set("elasticity", found.probe.elasticity)
      .set("largest_fitting", found.largest_fitting)
      .set("learning_rate_factor", answer.learning_rate_factor)
      .set("supply", found.supply > 0 ? Json(found.supply) : Json())
      .set("seconds", found.seconds)
      .set("plan_seconds", found.plan_seconds)
      .set("failed_allocations", found.failed_allocations)
      .set("stop", found.probe.ended_by)
      .set("words", words);
  Json points = Json::array();
  for (const tuner::ProbePoint& p : found.probe.points) {
    points.push(Json::object()
                    .set("batch", p.batch)
                    .set("samples_per_second", p.samples_per_second)
                    .set("standard_error", p.se)
                    .set("bound", p.bound > 0 ? Json(p.bound) : Json())
                    .set("dram_share", p.dram)
                    .set("planned_bytes", p.planned_bytes)
                    .set("windows", i64(p.windows)));
  }
  auto_batch_.set("points", std::move(points));
  const std::string svg = measure::curve_svg(report_.curves);
  if (!svg.empty()) {
    measure::write_whole_file(folder_.file("curve.svg"), svg);
  }
}

void Recorder::started(const RunState& state, const data::Loader& loader, Device device) {
  log::info("{}: {} on {}, {} samples, batch {} x {}, {} workers, depth {}, run folder {}",
            report_.title, model_text(setup_), device_name(device), setup_.train->size(), state.shape.micro,
            state.shape.accumulate, loader.workers(), loader.depth(), folder_.path());
  const io::Config& c = setup_.config;
  measure::RunPlan plan;
  plan.samples = start_.total_samples;
  if (c.train.max_steps > 0) {
    plan.samples = std::min(plan.samples, c.train.max_steps * state.shape.samples());
  }
  const i64 every = samples_of(c.evaluation.every, setup_, state.shape.samples());
  if (setup_.validation && every > 0) {
    plan.evaluations = (plan.samples + every - 1) / every;
    plan.evaluation_samples = setup_.validation->size();
  }
  if (c.train.max_time > 0) {
    plan.max_seconds = c.train.max_time;
  }
  eta_.emplace(plan, monotonic_seconds(), state.position, state.evaluations, state.saves);
}

void Recorder::activity(const std::string& what) {
  measure::Progress p = shown_;
  p.activity = what;
  line_.update(p);
}

bool Recorder::due() const { return line_.due(); }

void Recorder::progress(const RunState& state, const Setup& setup, const data::Loader& loader,
                        const Interval* interval) {
  const double now = monotonic_seconds();
  measure::Progress& p = shown_;
  const i64 size = setup.train->size();
  p.activity.clear();
  p.epochs = setup.config.train.epochs;
  p.epoch = std::min<i64>(state.position / size + 1, p.epochs);
  p.epoch_share = double(state.position % size) / double(size);
  p.share = double(state.position) / double(std::max<i64>(1, start_.total_samples));
  if (interval != nullptr) {
    const measure::StepAccount& a = interval->account;
    const double training = a.wall - a.other_total();
    if (training > 0 && a.samples > 0) {
      p.samples_per_second = double(a.samples) / training;
    }
    p.data_wait = a.wall > 0 ? std::optional(a.share(a.data_wait)) : std::nullopt;
    p.dram = interval->dram;
    if (state.targets > 0) {
      p.loss = state.loss_sum / double(state.targets);
    }
  }
  const auto region = [&](Region r) { return memory::stats(setup.device, r).committed; };
  p.memory_used = double(region(Region::kPersistent) + region(Region::kStep));
  p.memory_total = double(setup.device.is_cuda() ? cuda::info().total_memory : machine::total_memory());
  p.batch = state.shape.micro;
  p.accumulate = state.shape.accumulate;
  p.workers = loader.workers();
  p.depth = loader.depth();
  p.limit = verdict_ ? measure::word_of(verdict_->limit) : "";
  if (eta_) {
    eta_->trained(now, state.position);
    p.seconds_left = eta_->seconds_left(now);
    p.ends = p.seconds_left ? measure::time_of_day(*p.seconds_left) : "";
  }
  line_.update(p);
}

std::optional<measure::Verdict> Recorder::judge(const RunState& state, const Setup& setup) const {
  measure::Situation s;
  s.account = recent_;
  s.dram = dram_;
  s.elasticity = elasticity_;
  s.largest_batch = largest_;
  s.knee = knee_;
  if (cost_ && recent_.wall > 0) {
    s.fixed_bytes_share = cost_->fixed_bytes_share(double(state.shape.micro));
    s.flops_per_second = cost_->flops(double(state.shape.micro)) / double(state.shape.micro) *
                         double(recent_.samples) / recent_.wall;
  }
  if (ceilings_) {
    s.flops_ceiling = matmul_ceiling(*ceilings_, setup.precision);
  }
  const io::Config& c = setup.config;
  s.settings = {.cuda = setup.device.is_cuda(),
                .batch = state.shape.micro,
                .accumulate = state.shape.accumulate,
                .workers = state.workers,
                .depth = state.depth,
                .io_concurrency = state.io,
                .cache_bytes = c.data.cache_bytes,
                .precision = setup.precision,
                .capture = c.train.capture != "off" && setup.device.is_cuda(),
                .transfer_uint8 = true,
                .augment_on_device = true,  // bytes are normalised there; crops stay the worker's
                .recompute = c.model.recompute == "blocks",
                .most_workers = machine::cores()};
  return measure::judge(s);
}

void Recorder::interval(const RunState& state, const Setup& setup, const data::Loader& loader,
                        StepRunner& /*runner*/, const Interval& in) {
  const double now = monotonic_seconds();
  total_ += in.account;
  // The verdict speaks of the recent past: old intervals fade.
  if (recent_.wall > 20) {
    recent_ = {};
  }
  recent_ += in.account;
  dram_ = in.dram;
  verdict_ = judge(state, setup);
  progress(state, setup, loader, &in);
  const measure::StepAccount& a = in.account;
  const double training = a.wall - a.other_total();
  const double rate = training > 0 ? double(a.samples) / training : 0;
  const i64 memory_used = memory::stats(setup.device, Region::kPersistent).committed +
                          memory::stats(setup.device, Region::kStep).committed;
  memory_high_ = std::max(memory_high_, memory_used);
  const double loss = state.targets > 0 ? state.loss_sum / double(state.targets) : NAN;
  if (state.targets > 0) {
    last_loss_ = loss;
  }
  Json j = Json::object();
  j.set("step", state.step).set("position", state.position);
  j.set("epoch", double(state.position) / double(setup.train->size()));
  j.set("loss", loss);
  if (state.targets > 0) {
    j.set("accuracy", double(state.correct) / double(state.targets));
  }
  j.set("learning_rate", in.learning_rate).set("grad_norm", state.grad_norm);
  j.set("steps", state.steps).set("samples", state.samples).set("skipped", state.skipped);
  j.set("batch", state.shape.micro).set("accumulate", state.shape.accumulate);
  j.set("bad_samples", state.bad_samples);
  // From here on: times, rates and memory, which differ from run to run.
  j.set("seconds", start_.seconds + now - begin_);
  j.set("samples_per_second", rate > 0 ? Json(rate) : Json());
  j.set("workers", loader.workers()).set("depth", loader.depth()).set("io_concurrency", loader.io_concurrency());
  j.set("account", account_json(a)).set("dram", dram_json(in.dram));
  j.set("memory", memory_used);
  j.set("limit", verdict_ ? Json(verdict_->name()) : Json());
  metrics_.write(j.dump());
  if (events_) {
    const auto scalar = [&](const char* tag, double v) {
      if (std::isfinite(v)) {
        events_->scalar(tag, float(v), state.step);
      }
    };
    scalar("train/loss", loss);
    if (setup.classifies && state.targets > 0) {
      scalar("train/accuracy", double(state.correct) / double(state.targets));
    }
    scalar("train/learning_rate", in.learning_rate);
    scalar("train/grad_norm", state.grad_norm);
    scalar("speed/samples_per_second", rate);
    scalar("speed/data_wait", a.share(a.data_wait));
    scalar("settings/batch", double(state.shape.micro));
    scalar("settings/workers", loader.workers());
    scalar("settings/depth", loader.depth());
    if (in.dram && in.dram->source != measure::Source::kNone) {
      scalar("speed/dram_bytes_per_second", in.dram->bytes_per_second);
    }
    events_->flush();
  }
  report_.intervals.push_back({.begin = now - begin_ - a.wall,
                               .samples = state.position,
                               .account = a,
                               .dram = in.dram,
                               .memory_used = double(memory_used),
                               .batch = state.shape.micro,
                               .accumulate = state.shape.accumulate,
                               .workers = loader.workers(),
                               .depth = loader.depth()});
  const auto series = [&](const std::string& plot, const std::string& name, double value) {
    if (!std::isfinite(value)) {
      return;
    }
    for (measure::ReportSeries& s : report_.series) {
      if (s.plot == plot && s.name == name) {
        s.samples.push_back(double(state.position));
        s.values.push_back(value);
        return;
      }
    }
    report_.series.push_back({.plot = plot, .name = name, .samples = {double(state.position)}, .values = {value}});
  };
  series("loss", "training", loss);
  if (setup.classifies && state.targets > 0) {
    series("accuracy", "training", double(state.correct) / double(state.targets));
  }
  // Rewritten while the run lives, seldom enough to cost nothing.
  if (now - last_report_ > 30) {
    last_report_ = now;
    write_report(state, setup, true);
  }
}

void Recorder::evaluated(const RunState& state, const Evaluation& e) {
  last_evaluation_ = e;
  const double now = monotonic_seconds();
  if (eta_) {
    eta_->spent(measure::OtherKind::kEvaluation, now, e.seconds);
  }
  Json j = Json::object();
  j.set("step", state.step).set("position", state.position);
  j.set("epoch", double(state.position) / double(setup_.train->size()));
  j.set("validation_loss", e.loss);
  j.set("validation_accuracy", e.accuracy);
  j.set("validation_samples", e.samples);
  j.set("seconds", start_.seconds + now - begin_).set("evaluation_seconds", e.seconds);
  metrics_.write(j.dump());
  if (events_) {
    events_->scalar("validation/loss", float(e.loss), state.step);
    if (e.accuracy) {
      events_->scalar("validation/accuracy", float(*e.accuracy), state.step);
    }
  }
  const auto add = [&](const std::string& plot, double value) {
    for (measure::ReportSeries& s : report_.series) {
      if (s.plot == plot && s.name == "validation") {
        s.samples.push_back(double(state.position));
        s.values.push_back(value);
        return;
      }
    }
    report_.series.push_back(
        {.plot = plot, .name = "validation", .samples = {double(state.position)}, .values = {value}});
  };
  add("loss", e.loss);
  if (setup_.classifies && e.accuracy) {
    add("accuracy", *e.accuracy);
  }
  log::info("epoch {:.2f}: validation loss {:.4f}{} ({} samples in {})",
            double(state.position) / double(setup_.train->size()), e.loss,
            e.accuracy ? format(", accuracy {:.2f} %", 100 * *e.accuracy) : "", e.samples,
            seconds_text(e.seconds));
}

void Recorder::saved(const io::SaveOutcome& o) {
  if (o.saved) {
    log::debug("checkpoint {} ({} in {})", o.path, bytes_text(double(o.bytes)), seconds_text(o.seconds));
  }
  if (eta_) {
    eta_->spent(measure::OtherKind::kCheckpoint, monotonic_seconds(), 0);
  }
}

void Recorder::tuned(const RunState& state, const std::string& reason) {
  log::info("tuner: {}", reason);
  report_.decisions.push_back(
      {.seconds = monotonic_seconds() - begin_, .samples = state.position, .knob = "settings", .why = reason});
  if (eta_) {
    eta_->changed();
  }
}

void Recorder::decisions(const std::vector<tuner::Record>& records, const RunState& /*state*/) {
  for (const tuner::Record& r : records) {
    decisions_.write(r.to_line());
  }
}

void Recorder::write_report(const RunState& /*state*/, const Setup& /*setup*/, bool live) {
  report_.live = live;
  report_.verdict = verdict_;
  try {
    measure::write_whole_file(folder_.file("report.html"), measure::report_html(report_));
  } catch (const Error& e) {
    log::warn_once("report", format("the report could not be written: {}", e.what()));
  }
}

void Recorder::finished(const RunState& state, const Setup& setup, const std::string& reason,
                        const AutoBatch* /*found*/, const data::Loader& loader) {
  line_.finish();
  // Over the whole session: what limited it, on the whole.
  recent_ = total_;
  verdict_ = judge(state, setup);
  if (plan_) {
    for (const auto& [kind, bytes] : plan_->persistent_by_class) {
      if (bytes > 0) {
        report_.memory.push_back({.name = name_of(kind), .planned = double(bytes), .measured = std::nullopt});
      }
    }
    report_.memory.push_back({.name = "step",
                              .planned = double(plan_->step),
                              .measured = double(memory::stats(setup.device, Region::kStep).high_water)});
  }
  Json j = Json::object();
  j.set("schema", 1).set("version", kVersion).set("name", run_name(setup.config));
  j.set("run", folder_.identity()).set("folder", folder_.path());
  j.set("model", setup.model.name).set("data", setup.config.data.name);
  j.set("device", device_name(setup.device)).set("precision", measure::name_of(setup.precision));
  j.set("status", reason).set("steps", state.step).set("samples", state.position);
  j.set("epochs", double(state.position) / double(setup.train->size()));
  j.set("seconds", state.seconds);
  j.set("train_loss", last_loss_);
  j.set("validation_loss", last_evaluation_ ? Json(last_evaluation_->loss) : Json());
  j.set("validation_accuracy", last_evaluation_ ? Json(last_evaluation_->accuracy) : Json());
  j.set("best", state.best).set("metric", setup.classifies ? "accuracy" : "loss");
  j.set("seconds_to_target", state.seconds_to_target);
  const double training = total_.wall - total_.other_total();
  j.set("samples_per_second", training > 0 ? Json(double(total_.samples) / training) : Json());
  j.set("batch", state.shape.micro).set("accumulate", state.shape.accumulate);
  j.set("workers", loader.workers()).set("depth", loader.depth());
  j.set("memory", memory_high_);
  j.set("skipped_steps", state.skipped).set("bad_samples", state.bad_samples);
  j.set("account", account_json(total_)).set("dram", dram_json(dram_));
  j.set("verdict", verdict_ ? verdict_json(*verdict_) : Json());
  j.set("auto_batch", auto_batch_);
  io::replace_file(folder_.file("summary.json"), j.dump(true) + "\n");
  if (verdict_) {
    log::info("{}: {}", verdict_->name(), verdict_->headline);
    for (const measure::Remedy& r : verdict_->remedies) {
      log::info("  try {}: {} ({})", r.key, r.value, r.why);
    }
    report_.summary.push_back(verdict_->headline);
  }
  write_report(state, setup, false);
  metrics_.sync();
  decisions_.sync();
  if (last_evaluation_ && last_evaluation_->accuracy && setup.classifies) {
    log::info("done: validation accuracy {:.2f} % after {} samples in {}; see {}/report.html",
              100 * *last_evaluation_->accuracy, state.position, seconds_text(state.seconds), folder_.path());
  } else if (last_evaluation_) {
    log::info("done: validation loss {:.4f} after {} samples in {}; see {}/report.html",
              last_evaluation_->loss, state.position, seconds_text(state.seconds), folder_.path());
  } else {
    log::info("done: training loss {:.4f} after {} samples in {}; see {}/report.html", last_loss_,
              state.position, seconds_text(state.seconds), folder_.path());
  }
  if (options_.json) {
    std::cout << j.dump(true) << "\n";
  }
}

}  // namespace penstock::trainers
