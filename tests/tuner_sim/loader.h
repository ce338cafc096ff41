// A training loop and its data loader on a virtual clock: discrete events, parallel over samples,
// delivered in order through one ring of sample slots.
//
// Samples are admitted in order when a slot is free (at most min(ring, (D + 1) B) are filled or in
// flight), read from storage by at most `io` readers, decoded by at most W workers, and handed over
// in order. Workers progress at a common rate that falls when cores are short or memory bandwidth
// saturates; the step progresses at its own rate, which falls faster: a parallel region waits for
// its slowest thread.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tuner/online.h"
#include "tests/tuner_sim/random.h"

namespace penstock::tuner_sim {

// How CPU work per sample is distributed around its mean.
enum class Work { kConstant, kLognormal, kRareSlow, kBimodal };

struct LoaderMachine {
  // The step: seconds for a batch of b samples = fixed + per_sample * b, never below `floor`.
  double step_floor = 0;
  double step_fixed = 0.02;
  double step_per_sample = 0;
  double step_cv = 0;
  int burst_period = 0;  // every burst_period-th step takes burst_factor times as long
  double burst_factor = 1;
  // CPU work of a sample.
  Work work = Work::kConstant;
  double work_seconds = 0.002;
  double work_cv = 0;  // lognormal; rare slow: factor; bimodal: ratio of the two
  double work_rare = 0.01;
  // Storage: one read takes fetch_seconds; beyond fetch_parallel readers, reads slow down.
  double fetch_seconds = 0;
  double fetch_cv = 0;
  int fetch_parallel = 64;
  // The host.
  int cores = 16;
  int compute_threads = 0;    // threads of the step that share the cores (0: it runs on a GPU)
  double lockstep = 0;        // extra exponent with which oversubscription slows the step
  double bandwidth_drag = 0;  // slow-down of the step per busy worker
  double contention = 0;      // sigma of the universal scalability law, over busy workers
  double coherence = 0;       // kappa of it
  std::int64_t ring_slots = 1 << 14;
  double sample_bytes = 150e3;
  // Evaluation or checkpoint: every pause_period steps the consumer is away for pause_seconds.
  int pause_period = 0;
  double pause_seconds = 0;
  // What the meters report besides time, for a batch b: shares in [0, 1]; negative: no source.
  double dram_share = -1;
  double launch_share = -1;

  double step_seconds(double batch) const {
    const double affine = step_fixed + step_per_sample * batch;
    return affine > step_floor ? affine : step_floor;
  }
};

class LoaderSimulation {
 public:
  LoaderSimulation(const LoaderMachine& machine, const tuner::Settings& settings,
                   std::uint64_t seed);

  // Runs `steps` steps and returns what the meters saw of them.
  tuner::Interval run(std::int64_t steps);
  void set(const tuner::Settings& settings);
  const tuner::Settings& settings() const { return settings_; }
  // The machine may be changed at any moment: a regime change.
  LoaderMachine& machine() { return machine_; }
  void machine_changed();

  double now() const { return now_; }
  // Largest number of slots that were filled or in flight at once.
  std::int64_t slots_high_water() const { return slots_high_; }
  // Samples handed over so far; they are always 0, 1, 2, ... (checked while running).
  std::int64_t delivered() const { return position_; }
  // Core-seconds that workers used since the start.
  double worker_core_seconds() const { return busy_total_; }

 private:
  struct Event {
    double due;
    std::int64_t sample;
  };

  void refresh_rates();
  void fill_work_table();
  std::int64_t allowed_slots() const;
  int worker_limit() const;
  int reader_limit() const;
  void admit();
  void wait_for_worker(std::int64_t sample);
  void start_decodes();
  void finish_sample(std::int64_t sample);
  void advance(double seconds);
  bool next_event();
  void deliver();
  double work_of(std::int64_t sample) const;
  double fetch_of(std::int64_t sample) const;
  bool fetches() const { return machine_.fetch_seconds > 0; }

  LoaderMachine machine_;
  tuner::Settings settings_;
  Random random_;
  std::uint64_t seed_;
  std::vector<double> work_table_;
  std::vector<double> worker_rate_[2];  // by busy workers, [step running]
  std::vector<double> run_share_[2];    // share of a worker's time in which it has a core
  std::vector<double> step_rate_;       // by busy workers

  double now_ = 0;
  double worker_clock_ = 0;      // progress of every busy worker, in work seconds
  double reader_clock_ = 0;      // progress of every busy reader
  std::vector<Event> decoding_;  // heaps by due
  std::vector<Event> fetching_;
  std::vector<std::int64_t> waiting_;  // heap of samples that a worker may start
  std::vector<char> done_;             // ring of flags by sample & mask
  std::int64_t mask_ = 0;
  std::int64_t position_ = 0;  // samples handed over
  std::int64_t freed_ = 0;     // samples whose slots are free again
  std::int64_t admitted_ = 0;  // samples that own a slot or did
  std::int64_t ready_ = 0;     // contiguous samples that are decoded
  std::int64_t slots_high_ = 0;
  bool computing_ = false;
  double step_left_ = 0;
  std::int64_t step_batch_ = 0;
  std::int64_t step_index_ = 0;
  // Sums over the interval that runs.
  double busy_ = 0, run_delay_ = 0, reading_ = 0, stall_ = 0, compute_ = 0, other_ = 0;
  double busy_total_ = 0;
  std::int64_t decoded_ = 0, read_ = 0, delivered_steps_ = 0, delivered_samples_ = 0;
  double cycle_sum_ = 0, cycle_square_ = 0, last_delivery_ = 0, step_sum_ = 0, step_square_ = 0;
  double step_started_ = 0, pause_left_ = 0, cycle_other_ = 0;
  double queue_low_ = 0, queue_high_ = 0;
};

}  // namespace penstock::tuner_sim
