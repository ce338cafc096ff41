#include "trainers/run_state.h"

#include "trainers/version.h"

namespace penstock::trainers {
namespace {

constexpr i64 kFormat = 1;

}  // namespace

io::Json to_json(const RunState& s, const io::Config& config) {
  io::Json j = io::Json::object();
  j.set("format", kFormat).set("writer", std::string("penstock ") + kVersion);
  j.set("step", s.step).set("position", s.position);
  j.set("micro", s.shape.micro).set("accumulate", s.shape.accumulate).set("total", s.shape.total);
  j.set("rate_factor", s.rate_factor).set("kappa", s.kappa).set("norm_factor", s.norm_factor);
  j.set("ramp_from", s.ramp_from).set("ramp_begin", s.ramp_begin).set("ramp_samples", s.ramp_samples);
  j.set("batch_chosen", s.batch_chosen);
  j.set("workers", s.workers).set("depth", s.depth).set("io", s.io);
  j.set("evaluations", s.evaluations).set("saves", s.saves);
  j.set("best", s.best).set("last_metric", s.last_metric).set("seconds", s.seconds);
  j.set("skipped", s.skipped).set("skipped_in_a_row", s.skipped_in_a_row).set("bad_samples", s.bad_samples);
  j.set("seconds_to_target", s.seconds_to_target);
  j.set("loss_sum", s.loss_sum).set("targets", s.targets).set("correct", s.correct);
  j.set("samples", s.samples).set("steps", s.steps).set("grad_norm", s.grad_norm);
  j.set("config", io::to_yaml(config));
  return j;
}

RunState state_from_json(const io::Json& j, const std::string& path) {
  const auto number = [&](const char* key) {
    const io::Json* v = j.find(key);
    const auto n = v != nullptr ? v->number() : std::nullopt;
    if (!n) {
      throw StorageError(format("{}: \"{}\" is missing or no number", path, key));
    }
    return *n;
  };
  const auto optional = [&](const char* key) {
    const io::Json* v = j.find(key);
    return v != nullptr ? v->number() : std::nullopt;
  };
  const auto count = [&](const char* key) {
    const double n = number(key);
    if (n < 0 || n > 9e15) {
      throw StorageError(format("{}: \"{}\" is {}; expected a count", path, key, n));
    }
    return i64(n);
  };
  if (count("format") != kFormat) {
    throw StorageError(format("{}: format {}; this version reads {}", path, count("format"), kFormat));
  }
  RunState s;
  s.step = count("step");
  s.position = count("position");
  s.shape = {.micro = count("micro"), .accumulate = count("accumulate"), .total = count("total")};
  if (s.shape.micro < 1 || s.shape.accumulate < 1) {
    throw StorageError(format("{}: a batch of {} x {}", path, s.shape.micro, s.shape.accumulate));
  }
  s.rate_factor = number("rate_factor");
  s.kappa = number("kappa");
  s.norm_factor = number("norm_factor");
  s.ramp_from = number("ramp_from");
  s.ramp_begin = count("ramp_begin");
  s.ramp_samples = count("ramp_samples");
  const io::Json* chosen = j.find("batch_chosen");
  s.batch_chosen = chosen != nullptr && chosen->boolean().value_or(false);
  s.workers = int(count("workers"));
  s.depth = int(count("depth"));
  s.io = int(count("io"));
  s.evaluations = count("evaluations");
  s.saves = count("saves");
  s.best = optional("best");
  s.last_metric = optional("last_metric");
  s.seconds = number("seconds");
  s.skipped = count("skipped");
  s.skipped_in_a_row = count("skipped_in_a_row");
  s.bad_samples = count("bad_samples");
  s.seconds_to_target = optional("seconds_to_target");
  s.loss_sum = optional("loss_sum").value_or(0);
  s.targets = count("targets");
  s.correct = count("correct");
  s.samples = count("samples");
  s.steps = count("steps");
  s.grad_norm = optional("grad_norm").value_or(0);
  return s;
}

namespace {

std::vector<io::NamedTensor> optimizer_tensors(StepRunner& runner) {
  std::vector<io::NamedTensor> all;
  const auto& moments = runner.arena().moments();
  for (std::size_t i = 0; i < moments.size(); ++i) {
    all.push_back({.name = "moment." + std::to_string(i), .tensor = moments[i]});
  }
  all.push_back({.name = "step_state", .tensor = runner.state()});
  return all;
}

}  // namespace

void add_run(io::Snapshot& snapshot, const Setup& setup, StepRunner& runner, const RunState& state) {
  snapshot.step = state.step;
  snapshot.position = state.position;
  snapshot.metric_name = setup.classifies ? "accuracy" : "loss";
  snapshot.metric = state.last_metric;
  const auto model = runner.model().public_tensors();
  snapshot.add_tensors(io::kModelFile, model,
                       {{"format", "pt"}, {"model", setup.model.name}, {"writer", std::string("penstock ") + kVersion}});
  snapshot.add_tensors(io::kStateFile, optimizer_tensors(runner));
  snapshot.add_text(io::kRunFile, to_json(state, setup.config).dump(true) + "\n");
}

io::Config config_of(const io::Checkpoint& checkpoint) {
  const std::string path = checkpoint.path() + "/" + io::kRunFile;
  const io::Json j = io::Json::parse(checkpoint.text(io::kRunFile), path);
  const io::Json* yaml = j.find("config");
  const auto text = yaml != nullptr ? yaml->text() : std::nullopt;
  if (!text) {
    throw StorageError(format("{}: the configuration is missing", path));
  }
  return io::parse_config(*text, path);
}

void load_model(const io::Checkpoint& checkpoint, StepRunner& runner) {
  const auto tensors = runner.model().public_tensors();
  io::load_weights(checkpoint.tensors(io::kModelFile), tensors, {});
  if (runner.arena().buffers().defined()) {
    runner.arena().buffer_shadows().copy_from(runner.arena().buffers());
  }
  runner.arena().refresh_low_precision();
}

RunState load_run(const io::Checkpoint& checkpoint, const Setup& setup, StepRunner& runner) {
  io::check_resume(config_of(checkpoint), setup.config);
  load_model(checkpoint, runner);
  const auto state = optimizer_tensors(runner);
  io::load_weights(checkpoint.tensors(io::kStateFile), state, {});
  const std::string path = checkpoint.path() + "/" + io::kRunFile;
  return state_from_json(io::Json::parse(checkpoint.text(io::kRunFile), path), path);
}

}  // namespace penstock::trainers
