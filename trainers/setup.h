// From a configuration to the things that a run is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/loader.h"
#include "framework/io/config.h"
#include "framework/measure/ceilings.h"
#include "framework/optim/schedule.h"
#include "trainers/step.h"

namespace penstock::trainers {

struct Setup {
  io::Config config;
  Device device;
  measure::Precision precision = measure::Precision::kF32;
  DType compute = DType::f32;
  int threads = 1;       // compute threads on the CPU
  std::shared_ptr<const data::Dataset> train;
  std::shared_ptr<const data::Dataset> validation;  // null: there is none
  std::vector<std::string> class_names;
  models::ModelOptions model;
  optim::OptimizerOptions optimizer;
  i64 targets_per_sample = 1;  // 0: differs from sample to sample
  bool batch_norm = false;
  bool classifies = true;      // accuracy means something
};

// Chooses the device and precision, opens the data and describes the model. Throws ConfigError,
// DataError or DeviceError.
Setup make_setup(const io::Config& config);
// The device that train.device means. Throws DeviceError for a GPU that is not there.
Device device_of(const io::Config& config);
measure::Precision precision_of(const std::string& name);

// Options of a step runner whose micro-batches hold at most `largest` samples.
StepOptions step_options(const Setup& setup, Device device, i64 largest);
// Samples of the whole run, and the schedule over them.
i64 total_samples(const Setup& setup);
// Samples that a period stands for; -1 for times, auto and never.
i64 samples_of(const io::Period& period, const Setup& setup, i64 step_samples);
optim::Schedule schedule_of(const Setup& setup, i64 step_samples);
data::LoaderOptions loader_options(const Setup& setup);
// Everything that stays as the configuration says for the whole process: threads, tf32, workspace
// limit, determinism, log level.
void apply_process_settings(const Setup& setup);

}  // namespace penstock::trainers
