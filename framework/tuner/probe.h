// The probe: throughput against batch, measured at a few batches, and the knee of that curve.
//
// A pure ask/tell machine. The driver runs what ask() wants, tells what the meters saw, and repeats
// until done(); result() then holds the curve and the batch. The machine has no clock: the same
// observations give the same decisions, and its log holds all of them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/check.h"
#include "framework/tuner/curve.h"
#include "framework/tuner/decisions.h"
#include "framework/tuner/statistics.h"

namespace penstock::tuner {

// What the plan knows about a step of one batch.
struct BatchPlan {
  i64 batch = 0;
  i64 planned_bytes = 0;  // peak memory
  double bytes = 0;       // device memory traffic
  double flops = 0;
  // Sum over ops of max(bytes / achievable bandwidth, FLOPs / measured ceiling); 0: unknown.
  double bound_seconds = 0;
  double bound_memory_seconds = 0;  // what the bytes alone take: sum of bytes / bandwidth
};

struct ProbeOptions {
  i64 configured_batch = 32;
  i64 smallest = 1;             // 2 where batch norm cannot take one sample
  i64 largest_fitting = 0;      // by the plan; below `smallest` nothing fits: OutOfMemory
  i64 free_bytes = 0;           // what the plan may use, for messages; 0: unknown
  i64 dataset_size = 0;         // samples of an epoch; 0: unbounded
  i64 ring_slots = 0;           // of the loader; a batch is at most half of them; 0: unbounded
  std::optional<i64> auto_max;  // auto_batch.max
  std::optional<double> max_scale = 16.0;  // times the configured batch, for each new batch
  i64 remaining_samples = 0;               // of the run; 0: unknown
  i64 min_steps = 1000;                    // optimizer steps that must remain
  double knee_share = 0.95;  // the answer gives at least this share of the best throughput
  bool hold = false;         // the micro-batch is sought: at most the configured batch
  bool exhaustive = false;   // a sweep: every batch of the grid, no early end
  bool batch_norm = false;   // marks the answer: its statistics follow the micro-batch
  // Budget: this share of the predicted run, at least `budget_steps` steps, at most
  // `budget_seconds` (30 on a GPU, 60 on a CPU). The library's plan building is not counted.
  double budget_share = 0.05;
  int budget_steps = 40;
  double budget_seconds = 30;
  std::vector<BatchPlan> plans;  // ascending; between and beyond them the figures are interpolated
  bool use_bandwidth = true;     // off only to show what the signal is worth
  bool dram_meter = false;       // a meter exists: windows of 300 ms at the contenders
};

// The batches that the probe may visit on its way up, ascending: what the plan should cover.
std::vector<i64> probe_grid(const ProbeOptions& options);

enum class ProbeKind {
  kWarmUp,  // discarded: algorithm choice and capture belong here
  kWindow,  // timed with one synchronisation at its end
  kDram,    // a window long enough for the bandwidth meter; timed as well
};
const char* name_of(ProbeKind kind);

// What the driver should run: full training steps of `batch` samples.
struct ProbeRequest {
  i64 batch = 0;
  ProbeKind kind = ProbeKind::kWarmUp;
  int steps = 1;           // at least
  double min_seconds = 0;  // and at least this long
  std::string why;
};

// What came of the last request. Shares are in [0, 1].
struct ProbeObservation {
  i64 batch = 0;
  int steps = 0;                       // steps that were run
  double seconds = 0;                  // of the window, by a monotonic clock
  double seconds_used_total = 0;       // of the probe so far, the library's plan building taken out
  std::optional<double> dram_share;    // of the achievable bandwidth
  std::optional<double> ledger_share;  // the same from the ledger, for the ratio of the two
  std::optional<double> launch_share;  // device idle between kernels
  std::optional<double> stall_share;   // the consumer waited for data
  std::optional<double> clock_change;  // of the SM clock inside the window, relative
  bool failed_memory = false;  // an allocation failed, for a cause outside: nothing was timed
};

struct ProbePoint {
  i64 batch = 0;
  double samples_per_second = 0;  // median of the windows
  double se = 0;                  // standard error, samples per second
  int windows = 0;
  int discarded_steps = 0;
  double step_seconds = 0;
  std::optional<double> dram;    // share of the achievable bandwidth
  std::optional<double> launch;  // share of the step
  std::optional<double> stall;
  double bound = 0;  // samples per second that bytes and FLOPs allow; 0: unknown
  double eta = 0;    // samples_per_second / bound; 0: unknown
  i64 planned_bytes = 0;
};

struct ProbeResult {
  i64 knee = 0;                     // the answer; has run full steps
  i64 knee_low = 0, knee_high = 0;  // batches that the error leaves open
  i64 best_batch = 0;               // most samples per second among the measured
  double best_rate = 0;             // reference: what 95 % is a share of, samples per second
  double knee_share = 0;            // throughput at the knee / best_rate
  std::vector<ProbePoint> points;   // ascending
  StepFit fit;                      // t(B); fit.half_batch() is B_half, fit.limit() T_inf
  bool fit_trusted = false;         // it predicted each doubling within 10 %
  double fit_miss = 0;              // worst relative miss of such a prediction
  double elasticity = 0;            // at the knee: share of the step that is fixed cost
  i64 doubling_knee = 0;            // smallest batch whose doubling gains < 15 %; 0: none seen
  i64 elastic_knee = 0;             // smallest batch with elasticity < 25 %; 0: none seen
  i64 largest_fitting = 0;
  double largest_rate_share = 0;     // predicted throughput there / best_rate; 0: unknown
  double configured_rate_share = 0;  // at the configured batch / at the knee; 0: unknown
  // What ended the curve: "saturated", "memory", "auto_batch.max", ... and what that costs.
  std::string ended_by;
  double left_on_table = 0;        // share of throughput that a larger batch would add; 0: nothing
  std::vector<std::string> marks;  // "budget", "capacity-bound", "limited by auto_batch.max", ...
  int steps = 0;                   // run by the probe
  double seconds = 0;              // used by the probe
  int failed_allocations = 0;
};

// The result in plain words, several lines, for the terminal.
std::string explain(const ProbeResult& result);

class Probe {
 public:
  // Throws OutOfMemory when not even the smallest batch fits, naming what it needs; ConfigError for
  // options that exclude every batch.
  explicit Probe(ProbeOptions options);

  bool done() const { return done_; }
  // The next thing to run; the same until tell(). Must not be called when done().
  const ProbeRequest& ask() const;
  // Throws OutOfMemory when the smallest batch itself failed; Error for an observation of another
  // batch than the one asked for.
  void tell(const ProbeObservation& observation);
  // Only when done().
  const ProbeResult& result() const;
  // Records written since the last call, in order.
  std::vector<Record> take_records();

 private:
  struct Visit {
    std::vector<double> rates;  // samples per second of accepted windows
    std::vector<double> warm;   // seconds per step of the warm-up since the last switch to it
    int discarded = 0;
    int rejected = 0;  // windows in a row in which the clock moved
    bool cold = true;  // warm-up is due
    std::optional<double> dram, launch, stall;
    bool metered = false;  // a window was long enough for the bandwidth meter
  };
  // A throughput and its standard error, samples per second.
  struct Estimate {
    double rate = 0;
    double error = 0;
  };
  struct Cap {
    i64 batch = 0;
    std::string key;
  };
  enum class Phase { kClimb, kSettle, kMeter };

  static std::vector<Cap> caps(const ProbeOptions& options);
  friend std::vector<i64> probe_grid(const ProbeOptions& options);
  void log_start();
  void log_decision(const char* at, const std::string& verdict, i64 to);
  // Measuring (probe.cpp).
  bool go_to(i64 batch, std::string why);
  void ask_next();
  bool warm_enough(const Visit& visit) const;
  void take_window(const ProbeObservation& seen);
  void lose_memory();
  bool affordable(i64 batch, int steps) const;
  double budget() const;
  double step_guess(i64 batch) const;
  void decide();
  void climb();
  void start_settling(std::string ended_by);
  void settle();
  void meter();
  void finish();
  // Judging (probe_settle.cpp).
  double noise() const;  // relative deviation of a window, over all batches
  Estimate estimate(i64 batch) const;
  std::vector<CurvePoint> curve_points() const;
  void refit(i64 measured);
  double bound_rate(i64 batch) const;
  std::optional<BatchPlan> plan_of(i64 batch) const;
  void check_bound(i64 batch);
  Estimate reference(bool measured_only = false) const;
  i64 top() const;  // largest batch that may be the answer
  i64 best_measured() const;
  i64 needed_batch(double rate) const;
  i64 friendly(i64 batch) const;
  bool use_fit() const;
  bool fell_short() const;
  Answer good_enough(i64 batch, const Estimate& best) const;
  i64 answer(const Estimate& best) const;
  std::optional<i64> wanted_batch(const Estimate& best) const;
  // Telling (probe_result.cpp).
  void mark(const std::string& text);
  void build_result();
  void judge_limits();
  void other_knees();

  ProbeOptions options_;
  std::vector<i64> grid_;
  std::size_t at_ = 0;  // of the grid, while climbing
  Cap cap_;
  Phase phase_ = Phase::kClimb;
  ProbeRequest request_;
  bool done_ = false;
  std::map<i64, Visit> visits_;
  std::vector<i64> climbed_;  // grid batches in the order in which they were measured
  i64 here_ = 0;
  int windows_wanted_ = 0;  // before the next decision
  StepFit fit_;
  bool trusted_ = false;
  double worst_miss_ = 0;
  std::map<i64, double> predictions_;  // of the rate, made before measuring
  bool bound_dropped_ = false;
  double traffic_ratio_ = 1;  // measured bytes / modelled bytes
  std::string ended_by_;
  int steps_ = 0;
  int refinements_ = 0;
  int turns_ = 0;
  bool by_bandwidth_ = false;  // the bound, not a flat curve, ended the climb
  double used_ = 0;
  double first_rate_ = 0;
  int failed_ = 0;
  i64 sequence_ = 0;
  std::vector<std::string> marks_;
  ProbeResult result_;
  std::vector<Record> records_;
};

}  // namespace penstock::tuner
