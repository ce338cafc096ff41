// check: everything that can be known before the first step.
#include <sys/statvfs.h>

#include <filesystem>
#include <iostream>

#include "framework/core/log.h"
#include "framework/io/json.h"
#include "framework/measure/table.h"
#include "trainers/commands.h"
#include "trainers/device.h"
#include "trainers/plan.h"
#include "trainers/run_folder.h"
#include "trainers/train.h"

namespace penstock::trainers {
namespace {

// The first and the last sample, through the whole pipeline.
void try_samples(const Setup& setup) {
  for (const i64 start : {i64{0}, setup.train->size() - 1}) {
    data::LoaderOptions options = loader_options(setup);
    options.sampler.shuffle = false;
    options.batch = 1;
    options.workers = 0;
    options.depth = 1;
    options.start = start;
    options.end = start + 1;
    options.max_bytes = setup.config.loader.max_bytes;
    options.pinned = false;
    data::Loader loader(setup.train, options);
    loader.release(loader.next(1));
  }
}

// Cuts a configuration down to what two steps need, whatever it was made for.
io::Config small(io::Config c) {
  c.train.batch = std::min<i64>(c.train.batch, 4);
  c.train.accumulate = std::min<i64>(c.train.accumulate, 2);
  c.train.max_steps = 2;
  c.train.epochs = 1;
  c.data.sequence = std::min<i64>(c.data.sequence, 32);
  if (c.data.name.starts_with("image_") || c.data.name.starts_with("synthetic_images")) {
    c.data.image_size = std::min<i64>(c.data.image_size, 64);
  }
  c.data.samples = c.data.samples > 0 ? std::min<i64>(c.data.samples, 32) : 32;
  c.data.validation_samples = 16;
  c.evaluation.samples = 16;
  c.evaluation.every = {1, io::Period::Unit::kSteps};
  c.checkpoint.every = {1, io::Period::Unit::kSteps};
  c.log.interval = {1, io::Period::Unit::kSteps};
  c.auto_batch.policy = "off";
  c.loader.max_bytes = std::min<i64>(c.loader.max_bytes, i64{64} << 20);
  return c;
}

}  // namespace

ExitCode run_check(const Arguments& a) {
  const io::Config config = config_of(a);
  const Setup setup = make_setup(config);
  apply_process_settings(setup);
  try_samples(setup);
  const BatchPlan plan = plan_batch(setup, config.train.batch, config.train.accumulate);
  const i64 capacity = device_capacity(setup);
  if (plan.total() > capacity) {
    throw OutOfMemory(format("{}: train.batch: {} needs {} and {} may be used; the largest batch that fits is {}",
                             io::origin_of(config, "train.batch"), config.train.batch,
                             bytes_text(double(plan.total())), bytes_text(double(capacity)),
                             largest_fitting(setup, capacity, config.train.batch)),
                      {.requested = plan.total(), .available = capacity});
  }
  const auto model = models::build_model(setup.model);
  const i64 parameters = model->parameter_count();
  // Weights and moments, for every checkpoint that is kept and the one being written.
  const i64 checkpoint = parameters * 4 * (1 + optim::moments_of(setup.optimizer.kind));
  const i64 kept = config.checkpoint.keep_last + config.checkpoint.keep_best + 1;
  std::string where = config.run.out.empty() ? "." : config.run.out;
  while (!where.empty() && !io::is_folder(where, io::Links::kFollow)) {
    where = io::parent_of(where);
  }
  const auto space = io::free_bytes(where.empty() ? "." : where);
  if (space && *space < checkpoint * kept) {
    throw StorageError(format("{}: {} are free, and {} checkpoints of {} are kept; free some space or lower "
                              "checkpoint.keep_last",
                              where, bytes_text(double(*space)), kept, bytes_text(double(checkpoint))));
  }
  if (a.json) {
    io::Json j = io::Json::object();
    io::Json keys = io::Json::object();
    for (const std::string& key : io::config_keys()) {
      keys.set(key, io::Json::object()
                        .set("value", io::value_of(config, key))
                        .set("origin", io::origin_of(config, key)));
    }
    j.set("keys", std::move(keys)).set("device", device_name(setup.device)).set("parameters", parameters);
    j.set("samples", setup.train->size()).set("planned_bytes", plan.total()).set("capacity", capacity);
    j.set("checkpoint_bytes", checkpoint);
    std::cout << j.dump(true) << "\n";
  } else {
    std::cout << io::to_yaml(config, true) << "\n";
    std::cout << format("device      {}\n", device_name(setup.device));
    std::cout << format("model       {}, {} parameters, input {}\n", setup.model.name,
                        count_text(double(parameters)), setup.model.input);
    std::cout << format("data        {} training samples, {} for validation; first and last load\n",
                        setup.train->size(), setup.validation ? setup.validation->size() : 0);
    std::cout << format("memory      {} planned at batch {}, {} may be used\n", bytes_text(double(plan.total())),
                        config.train.batch, bytes_text(double(capacity)));
    std::cout << format("checkpoint  {} each, {} kept, {} free\n", bytes_text(double(checkpoint)), kept,
                        space ? bytes_text(double(*space)) : std::string("unknown"));
  }
  if (a.smoke) {
    const std::string folder = format("{}/penstock-smoke-{}", std::filesystem::temp_directory_path().string(),
                                      io::random_suffix());
    io::Config cut = small(config);
    const log::Level level = log::Level::kWarning;
    log::set_level(level);
    ExitCode code = train(cut, {.out = folder, .quiet = true});
    if (code == ExitCode::kDone) {
      // Save and resume: two more steps from the checkpoint.
      cut.train.max_steps = 4;
      code = train(cut, {.out = folder, .resume = "", .quiet = true});
    }
    std::filesystem::remove_all(folder);
    if (code != ExitCode::kDone) {
      return code;
    }
    std::cout << (a.json ? "" : "smoke       two steps, evaluation, save, resume and two more steps: fine\n");
  }
  return ExitCode::kDone;
}

ExitCode run_plan(const Arguments& a) {
  const io::Config config = config_of(a);
  const Setup setup = make_setup(config);
  apply_process_settings(setup);
  measure::Ceilings ceilings;
  std::string device = device_name(setup.device);
  double capacity = double(device_capacity(setup));
  double kernel_seconds = 0;
  if (!a.device.empty()) {
    const measure::DeviceSheet* sheet = measure::find_device_sheet(a.device);
    if (sheet == nullptr) {
      std::string known;
      for (const measure::DeviceSheet& s : measure::device_sheets()) {
        known += (known.empty() ? "" : ", ") + std::string(s.name);
      }
      throw ConfigError(format("--device {}: unknown; known: {}", a.device, known));
    }
    ceilings = measure::assumed_ceilings(*sheet);
    device = sheet->name;
    capacity = sheet->memory_bytes * 0.97;
    kernel_seconds = 2e-6;
  } else {
    ceilings = device_ceilings(setup.device, setup.threads);
    kernel_seconds = setup.device.is_cuda() ? 2e-6 : 0;
  }
  const i64 batch = config.train.batch;
  const BatchPlan plan = plan_batch(setup, batch, config.train.accumulate);
  const measure::StepCost cost = cost_of(setup, std::max<i64>(2, batch / 4), std::max<i64>(4, batch));
  const i64 largest =
      largest_fitting(setup, i64(capacity), std::min<i64>(setup.train->size(), i64{1} << 16));
  const measure::Roof roof{.bytes_per_second = ceilings.bytes_per_second,
                           .flops_per_second = matmul_ceiling(ceilings, setup.precision),
                           .kernel_seconds = kernel_seconds};
  const measure::Prediction prediction = measure::predict(cost, roof, std::max<i64>(1, largest));
  if (a.json) {
    io::Json j = io::Json::object();
    j.set("device", device).set("source", ceilings.source).set("batch", batch);
    j.set("persistent_bytes", plan.persistent).set("step_bytes", plan.step).set("total_bytes", plan.total());
    j.set("bytes_per_step", cost.bytes(double(batch))).set("flops_per_step", cost.flops(double(batch)));
    j.set("largest_fitting", largest).set("predicted_knee", prediction.knee);
    j.set("predicted_half_batch", prediction.half_batch);
    io::Json points = io::Json::array();
    for (const measure::PredictedPoint& p : prediction.points) {
      points.push(io::Json::object()
                      .set("batch", p.batch)
                      .set("seconds", p.seconds)
                      .set("samples_per_second", p.samples_per_second));
    }
    std::cout << j.set("points", std::move(points)).dump(true) << "\n";
    return ExitCode::kDone;
  }
  std::cout << format("{} at batch {} on {} ({})\n\n", setup.model.name, batch, device, ceilings.source);
  measure::TextTable memory{.columns = {{"memory", measure::Align::kLeft}, {"bytes"}}, .rows = {}};
  for (const auto& [kind, bytes] : plan.persistent_by_class) {
    if (bytes > 0) {
      memory.rows.push_back({name_of(kind), bytes_text(double(bytes))});
    }
  }
  memory.rows.push_back({"one step", bytes_text(double(plan.step))});
  memory.rows.push_back({"total", bytes_text(double(plan.total()))});
  std::cout << memory.text() << "\n";
  std::cout << measure::op_table(cost, batch, roof, 20).text() << "\n";
  std::cout << measure::prediction_table(prediction).text() << "\n";
  std::cout << format("largest batch that fits: {} of {}; predicted knee: {}; these are predictions from {} "
                      "ceilings, not measurements\n",
                      largest, bytes_text(capacity), prediction.knee, ceilings.source);
  return ExitCode::kDone;
}

}  // namespace penstock::trainers
