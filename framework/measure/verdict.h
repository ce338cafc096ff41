// What limits a run: a pure function of measurements. The verdict is the cause whose disappearance
// would gain most, provided that its guard holds; it comes with its numbers and with remedies that
// are keys of the configuration. What is not measured is not guessed: a guard without its number
// does not hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/measure/account.h"
#include "framework/measure/ceilings.h"
#include "framework/measure/meter.h"
#include "framework/measure/table.h"

namespace penstock::measure {

enum class Limit : std::uint8_t {
  kInput,     // the loader
  kTransfer,  // copies between host and device
  kLaunch,    // the host cannot launch kernels fast enough
  kMemory,    // DRAM bandwidth
  kCompute,   // arithmetic
  kCapacity,  // memory ends the batch before it pays
  kMixed,     // no guard holds
  kUnstable,  // the measurements do not agree with each other
};
inline constexpr std::size_t kLimits = 8;
const char* name_of(Limit limit);  // "input-bound", "memory-bandwidth-bound", ...
const char* word_of(Limit limit);  // "input", "memory": the progress line's

// The settings in force, for remedies that change them. Keys in brackets.
struct Settings {
  bool cuda = false;
  i64 batch = 0;                          // train.batch
  i64 accumulate = 1;                     // train.accumulate
  int workers = 0;                        // loader.workers
  int depth = 2;                          // loader.depth
  int io_concurrency = 1;                 // loader.io_concurrency
  i64 cache_bytes = 0;                    // data.cache_bytes
  Precision precision = Precision::kF32;  // train.precision
  bool capture = false;                   // train.capture
  bool transfer_uint8 = false;            // data.transfer
  bool augment_on_device = false;         // data.augment
  bool recompute = false;                 // model.recompute
  // What could be, where known.
  std::optional<int> wanted_workers;    // W* of the loader's own figures
  std::optional<int> wanted_depth;      // D*
  std::optional<int> most_workers;      // cores that the loader may have
  std::optional<int> most_depth;        // that the ring holds
  std::optional<i64> data_set_bytes;    // as stored
  std::optional<i64> host_memory_room;  // bytes that a cache may take
};

// All that a verdict rests on, over one interval of one configuration.
struct Situation {
  StepAccount account;
  std::optional<Bandwidth> dram;                   // over the same interval
  std::optional<double> flops_per_second;          // of the model's own arithmetic, over wall time
  std::optional<double> flops_ceiling;             // measured matmul ceiling of this precision
  std::optional<double> elasticity;                // B_half / (B + B_half) of the step without data
  std::optional<double> fixed_bytes_share;         // of the step's bytes at this batch
  std::optional<double> mean_kernel_seconds;       // of the traced step
  std::optional<double> end_to_end_per_synthetic;  // throughput with data over without
  std::optional<i64> largest_batch;                // that fits in memory
  std::optional<i64> knee;         // of the curve; beyond largest_batch when predicted
  bool memory_ends_curve = false;  // the measured curve ended before any knee
  // Reasons not to judge.
  std::optional<double> clock_drop;  // share by which the SM clock fell
  std::optional<double> confidence;  // relative half-width of the throughput's interval
  std::optional<int> other_processes;
  Settings settings;
};

struct Number {
  std::string name;   // "data wait"
  std::string value;  // "23.1 %", as shown
  double raw = 0;     // 0.231
};

// A setting to change; `key` is one of remedy_keys(), `value` what to write there.
struct Remedy {
  std::string key;
  std::string value;
  std::string why;             // one sentence
  std::optional<double> gain;  // predicted, 0.3 for 30 % more samples a second
};

// How much faster the run would be if one part of its time vanished. Parts run beside each other: a
// step that waits for its loader gains nothing from faster kernels, nor does one whose host
// launches too slowly, and kernels cannot bring it below the time that the bus is busy.
struct Counterfactual {
  std::string part;
  double share = 0;  // of wall
  double gain = 0;
};

struct Verdict {
  Limit limit = Limit::kMixed;
  std::string detail;    // "decode", "fixed", "streaming", or what is unstable; may be empty
  std::string headline;  // plain words, one or two sentences
  double gain = 0;       // predicted, if the limiting part vanished
  std::vector<Number> evidence;
  std::vector<Remedy> remedies;              // most promising first
  std::vector<std::string> advice;           // what is not a key
  std::vector<Counterfactual> alternatives;  // largest gain first

  // "input-bound (decode)".
  std::string name() const;
};

// Thresholds of TUNING 6.
struct Guards {
  double data_wait = 0.05;           // of wall
  double end_to_end = 0.95;          // of synthetic throughput, at most
  double memcpy = 0.30;              // of device time
  double h2d_exposed = 0.10;         // of wall
  double launch_gap = 0.20;          // of wall
  double mean_kernel = 10e-6;        // seconds, at most
  double launch_elasticity = 0.5;    // t(B) nearly constant: over half of the step is fixed cost
  double dram = 0.60;                // of achievable
  double flops = 0.60;               // of the matmul ceiling
  double compute_elasticity = 0.20;  // at most
  double capacity_elasticity = 0.20;
  double clock_drop = 0.05;
  double confidence = 0.05;
};

// None while the account is empty.
std::optional<Verdict> judge(const Situation& situation, const Guards& guards = {});

// Every key that a remedy may name; all of them are keys of the configuration.
std::vector<std::string> remedy_keys();

// The ranked counterfactuals, and the evidence.
TextTable alternatives_table(const Verdict& verdict);
TextTable evidence_table(const Verdict& verdict);

}  // namespace penstock::measure
