// The configuration of a run: plain structs, filled from one schema table that also drives hints,
// help, completion, --set and the check on resume. Nothing in a file is code, an environment
// look-up or an include.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/check.h"

namespace penstock::io {

// "2 epochs", "500 steps", "10000 samples", "10 min", "3 %" (of the run), "auto", "never".
struct Period {
  enum class Unit : std::uint8_t { kNever, kAuto, kSteps, kEpochs, kSamples, kSeconds, kShare };
  double count = 0;
  Unit unit = Unit::kNever;
  bool operator==(const Period&) const = default;
};
std::string to_string(const Period& period);

// A number, or "auto": the tuner's business.
using AutoInt = std::optional<i64>;

struct Config {
  struct Run {
    std::string name;
    i64 seed = 1;
    std::string out;
  } run;
  struct Model {
    std::string name;
    i64 classes = 0;
    std::vector<i64> hidden;
    i64 layers = 0, heads = 0, width = 0, vocabulary = 0, context = 0, patch = 0;
    double dropout = 0, attention_dropout = 0;
    std::string stem, recompute, weights;
  } model;
  struct Data {
    std::string name, dir;
    std::vector<std::string> train, validation;
    double validation_share = 0;
    i64 image_size = 0, samples = 0, validation_samples = 0, classes = 0, sequence = 0,
        channels = 0;
    std::string augment;
    i64 crop_pad = 0;
    bool flip = false, random_crop = false;
    double jitter = 0, erasing = 0;
    std::vector<double> mean, deviation;
    std::string transfer, filter;
    i64 cache_bytes = 0;
    double cost = 0, blocking = 0, cost_jitter = 0;
    std::string on_error;
    i64 max_bad = 0;
    double max_bad_rate = 0, mask_probability = 0;
    i64 mask_token = 0;
    bool shuffle = true;
  } data;
  struct Loader {
    AutoInt workers, depth, io_concurrency;
    i64 max_bytes = 0;
    double read_limit = 0;
  } loader;
  struct Train {
    i64 batch = 0, accumulate = 1, epochs = 0, max_steps = 0;
    std::string precision, capture, device, on_nan;
    double max_time = 0;
    bool deterministic = false;
    double target = 0;
    i64 max_bad_steps = 0;
    AutoInt threads;
    double label_smoothing = 0;
  } train;
  struct Optimizer {
    std::string name;
    double learning_rate = 0, momentum = 0;
    bool nesterov = false;
    std::vector<double> betas;
    double epsilon = 0, weight_decay = 0, clip_norm = 0;
  } optimizer;
  struct Schedule {
    std::string name;
    Period warmup, decay;
    double final = 0, factor = 0;
    std::vector<double> milestones;
  } schedule;
  struct AutoBatch {
    std::string policy;
    i64 max = 0;
    std::optional<double> max_scale;  // none: no limit
    double knee = 0, budget_share = 0, budget_seconds = 0;
    bool online = true;
  } auto_batch;
  struct Evaluation {
    Period every;
    i64 batch = 0, samples = 0;
  } evaluation;
  struct Checkpoint {
    Period every;
    i64 keep_last = 0, keep_best = 0;
    double budget = 0;
  } checkpoint;
  struct Storage {
    i64 patience = 0;
    std::string on_full;
  } storage;
  struct Log {
    Period interval;
    std::string level;
    bool tensorboard = true;
    i64 trace_steps = 0;
  } log;
  struct Memory {
    i64 limit = 0, workspace_limit = 0;
  } memory;

  std::string source;  // the file
  std::map<std::string, std::string>
      origins;  // "train.batch" -> "file:3:10", "--set"; else default
};

// Throws ConfigError: "file:line:column: key: what was expected, what came, what to do".
// `overrides` are "key.path=value", applied in order behind the file.
Config load_config(const std::string& path, std::span<const std::string> overrides = {});
Config parse_config(std::string_view text, const std::string& name,
                    std::span<const std::string> overrides = {});
// All defaults: what an empty file would be, without the keys that every file must have.
Config default_config();

// Where a value comes from: "file:line:column", "--set", or "default".
std::string origin_of(const Config& config, const std::string& key);
// The value of a key as it would be written; throws ConfigError for an unknown key.
std::string value_of(const Config& config, const std::string& key);
std::vector<std::string> config_keys();
// Every key with its value; loads back to the same configuration. With `origins`, as comments.
std::string to_yaml(const Config& config, bool origins = false);
// The commented reference of all keys: what each means, its unit, range and default.
std::string config_reference();
// Keys and values that could continue a word.
std::vector<std::string> completions(std::string_view prefix);

struct KeyChange {
  std::string key, before, after;
};
// Keys that differ, in the order of the table.
std::vector<KeyChange> differences(const Config& a, const Config& b);
// Of those, the ones that a resumed run must not change: fixed keys, and fewer epochs.
std::vector<KeyChange> resume_conflicts(const Config& saved, const Config& now);
// Throws ConfigError naming them all, with where they were set.
void check_resume(const Config& saved, const Config& now);

}  // namespace penstock::io
