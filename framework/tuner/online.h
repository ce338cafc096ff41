// The online tuner: batch, workers, depth and read concurrency under one verified-step rule.
//
// The driver measures an interval, tells it with observe(), and applies settings() when the answer
// says so. The machine has no clock and no threads: the same intervals give the same decisions, and
// its log holds everything that it saw.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/check.h"
#include "framework/tuner/decisions.h"
#include "framework/tuner/statistics.h"

namespace penstock::tuner {

// What is tuned. `batch` is the number of samples that one call of next() delivers.
struct Settings {
  i64 batch = 1;
  int workers = 1;  // 0: the training thread loads by itself
  int depth = 2;    // batches ahead
  int io = 1;       // reads in flight; without effect where samples need no reading
  bool operator==(const Settings&) const = default;
};
// "batch 64, 4 workers, depth 2, 8 reads".
std::string to_string(const Settings& settings);

// One finished interval. Times are differences of a monotonic clock, in seconds; time spent in
// evaluation, checkpoints and logs is taken out before.
struct Interval {
  double seconds = 0;
  i64 steps = 0;
  i64 samples = 0;
  double stall_seconds = 0;    // the consumer waited for data
  double step_seconds = 0;     // g: mean consumer time per batch, waits excluded
  double cycle_cv = 0;         // coefficient of variation of the time from one batch to the next
  double service_seconds = 0;  // s: mean worker time per sample, waits for a core included
  double run_delay_share = 0;  // share of s spent waiting for a core
  double fetch_seconds = 0;    // mean reader time per sample; 0: samples need no reading
  double queue_low = 0;        // fewest and most decoded batches waiting when next() was called
  double queue_high = 0;
  std::optional<double> dram_share;            // of the achievable device bandwidth
  std::optional<double> launch_share;          // of the step: device idle between kernels
  std::optional<double> host_bandwidth_share;  // of the achievable host bandwidth
  bool disturbed = false;  // an evaluation or checkpoint could not be taken out: not used
};

// An interval ends after max(0.5 s, 30 steps), or after 4 s once it holds 4 steps.
bool interval_is_complete(double seconds, i64 steps);
// Two neighbouring pieces as one interval: for drivers that log more often than an interval lasts.
// Shares that only one of them has are taken from that one.
Interval merged(const Interval& first, const Interval& second);

// A batch that may be used, with what the probe and the plan know about it.
struct BatchCandidate {
  i64 batch = 0;
  double step_seconds = 0;   // predicted consumer time per batch without waits; 0: unknown
  double bound_seconds = 0;  // least time that its bytes and FLOPs allow; 0: unknown
};

struct OnlineOptions {
  Settings start;
  // A pinned knob keeps its start value.
  bool pin_batch = false;
  bool pin_workers = false;
  bool pin_depth = false;
  bool pin_io = false;
  int max_workers = 1;
  int max_depth = 64;
  int max_io = 64;
  // Cores granted to the loader (all cores minus the compute threads). Workers never exceed it,
  // except that one worker is always allowed.
  double loader_cores = 1;
  i64 ring_slots = 2;  // sample slots of the ring: (depth + 1) * batch never exceeds it
  std::vector<BatchCandidate> batches;  // ascending; empty: the batch is pinned
  bool use_bandwidth = true;            // off only to show what the signal is worth
};

enum class Knob { kBatch, kWorkers, kDepth, kIo };
inline constexpr std::size_t kKnobs = 4;
const char* name_of(Knob knob);

// What observe() answers.
struct Action {
  bool changed = false;  // settings() moved: apply them before the next interval
  std::string reason;    // one sentence; empty when nothing happened
};

class OnlineTuner {
 public:
  // Throws ConfigError when a start value lies outside its caps.
  explicit OnlineTuner(OnlineOptions options);

  const Settings& settings() const { return settings_; }
  // Tells one finished interval that ran wholly at settings().
  Action observe(const Interval& interval);
  // A batch above `largest` ran out of memory for a cause outside: it leaves the candidates, for
  // good; a current batch above it moves down at once. Throws OutOfMemory when none is left.
  Action limit_batch(i64 largest);
  // Largest depth that the ring allows for a batch, at least 1.
  int depth_cap(i64 batch) const;

  // Records written since the last call, in order.
  std::vector<Record> take_records();
  // Changes of settings so far: proposals, reverts and limits.
  int changes() const { return changes_; }
  // Proposals so far, and how many of them were kept and reverted, by knob.
  struct Tally {
    int proposed = 0, kept = 0, reverted = 0;
  };
  const Tally& tally(Knob knob) const { return tallies_[std::size_t(knob)]; }

 private:
  // Means over the pool.
  struct Summary {
    int count = 0;
    double rate = 0;     // x: samples per second, end to end
    double step = 0;     // g
    double service = 0;  // s
    double fetch = 0;
    double stall = 0;  // share of the time
    double run_delay = 0;
    double low = 0, high = 0;  // least and most over the pool
    double rate_error = 0;     // relative standard error of `rate`
    std::optional<double> dram, launch, host_bandwidth;
  };
  struct Proposal {
    Knob knob = Knob::kWorkers;
    Settings to;
    bool up = true;
    double needed_gain = 0;     // kept when the rate changes by at least this
    double predicted_gain = 0;  // for the log
    const char* rule = "";
    std::string reason;
    bool speculative = false;  // nothing but throughput speaks for or against it
  };
  struct Trial {
    Proposal proposal;
    Settings from;
    Summary before;
  };
  // What a knob has learned since the last regime change.
  struct Memory {
    int ceiling = 0;      // not above this; 0: nothing learned
    int floor = 0;        // not below this
    int refine_from = 0;  // an accepted jump from here scaled badly: look between
    int trials = 0;
    int first_value = 0;  // where the search began
    int up_failures = 0;
    int down_failures = 0;
    bool up_closed = false;
    bool down_closed = false;
    // Speculative steps that were tried and not kept; look_far: one was kept, the next is longer.
    int looks_down_failed = 0;
    int looks_up_failed = 0;
    bool looked_down = false;
    bool looked_up = false;
    bool look_far = false;
  };
  // Between-interval noise of a signal, from successive differences under equal settings.
  struct Noise {
    double sum = 0, weight = 0;
    void add(double log_difference);
    double sigma() const;
  };

  Memory& memory(Knob knob) { return memories_[std::size_t(knob)]; }
  const Memory& memory(Knob knob) const { return memories_[std::size_t(knob)]; }
  Summary summarise() const;
  bool departs(const Interval& interval) const;
  Action flush(const Interval& interval);
  void pool(const Interval& interval);
  Action verify();
  bool decided(const Summary& now, double gain, double error) const;
  Action keep(const Summary& now, double gain, double error);
  void judge_scaling(const Trial& trial, const Summary& now);
  Action revert(const Summary& now, double gain, double error);
  Action propose();
  bool may_try_workers() const;
  void apply(const Settings& settings);
  void log_interval(const Interval& interval, const char* use);
  void log_start();

  // The rules, each the proposal of one knob or none (online_rules.cpp).
  std::optional<Proposal> more_supply(const Summary& now) const;
  std::optional<Proposal> more_workers(const Summary& now, int wanted) const;
  std::optional<Proposal> more_reads(const Summary& now, int wanted) const;
  std::optional<Proposal> more_depth(const Summary& now) const;
  std::optional<Proposal> refine_workers(const Summary& now) const;
  std::optional<Proposal> fewer_workers(const Summary& now) const;
  std::optional<Proposal> look_around(const Summary& now) const;
  std::optional<Proposal> less_depth(const Summary& now) const;
  std::optional<Proposal> fewer_reads(const Summary& now) const;
  std::optional<Proposal> smaller_batch(const Summary& now) const;
  std::optional<Proposal> larger_batch(const Summary& now) const;
  int depth_for(const Settings& to, const Summary& now) const;
  int worker_cap() const;
  bool pinned(Knob knob) const;

  OnlineOptions options_;
  Settings settings_;
  std::vector<Interval> pool_;  // since the last change, at most kPoolLength
  std::optional<Trial> trial_;
  std::optional<Summary> reference_;  // what the present settings gave before a reverted trial
  std::vector<Interval> suspects_;
  std::array<Memory, kKnobs> memories_{};
  std::array<Tally, kKnobs> tallies_{};
  Noise rate_noise_, step_noise_, service_noise_, fetch_noise_;
  bool settling_ = true;  // the next interval is dropped
  int calm_ = 0;          // intervals in a row without stall, at these settings
  int cooldown_ = 0;
  int cooldown_length_ = 1;
  int since_batch_change_ = 0;
  int changes_ = 0;
  i64 sequence_ = 0;
  i64 last_flush_ = -1000;
  int flushes_ = 0;  // regimes in close succession
  std::vector<Record> records_;
};

}  // namespace penstock::tuner
