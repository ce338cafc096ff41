// The probe: which batch is the smallest that is as fast as it gets? A pure ask/tell machine. The
// driver runs steps, tells how long they took, and asks again until done().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/tuner/decisions.h"
#include "framework/tuner/statistics.h"

namespace penstock::tuner {

// A batch that the plan says fits.
struct ProbeCandidate {
  i64 batch = 0;
  double bound_seconds = 0;  // least time that its bytes and FLOPs allow; 0: unknown
  i64 planned_bytes = 0;
};

struct ProbeOptions {
  i64 configured = 64;
  std::vector<ProbeCandidate> candidates;  // ascending; refinements are taken from `refinable`
  // Bound of any other batch, for refinement: bound_fixed + bound_per_sample x batch; 0: unknown.
  double bound_fixed = 0;
  double bound_per_sample = 0;
  std::string cap;          // what ended the candidates: "memory", "auto_batch.max", ...
  std::string cap_key;      // the key that would lift it; may be empty
  double knee = 0.95;       // share of the best throughput
  double budget_seconds = 60;
  int budget_steps = 40;    // steps that are always allowed, whatever the budget
  bool use_bandwidth = true;
};

struct ProbeRequest {
  enum class Kind : std::uint8_t { kWarmUp, kWindow };
  Kind kind = Kind::kWarmUp;
  i64 batch = 0;
  int steps = 1;  // run and time so many, with one synchronisation at the end
};

struct ProbeReport {
  double seconds = 0;  // of the steps
  double spent = 0;    // since the probe began, plan building excluded
  std::optional<double> dram_share;    // of achievable, where a window was long enough
  std::optional<double> launch_share;
  bool clock_moved = false;            // by more than 2 %: the window does not count
  bool out_of_memory = false;          // for a cause outside of the plan
};

struct ProbePoint {
  i64 batch = 0;
  double seconds = 0;        // median step
  double error = 0;          // standard error of it, seconds
  double rate = 0;           // samples per second
  double lower = 0, upper = 0;  // confidence bounds of the rate
  int windows = 0;
  double bound = 0;          // samples per second that the ceilings allow; 0: unknown
  double eta = 0;            // rate / bound; 0: unknown
  std::optional<double> dram_share;
  i64 planned_bytes = 0;
  bool cold = false;  // never measured warm: ran out of budget
};

struct ProbeResult {
  i64 batch = 0;           // the knee
  i64 low = 0, high = 0;   // batches that the measurements cannot tell from the knee
  i64 best = 0;            // batch with the highest fitted rate
  double best_rate = 0;
  std::vector<ProbePoint> points;  // ascending
  // t(B) = max(c, a + b B).
  double a = 0, b = 0, c = 0;
  bool fit_holds = false;          // every point lies within 10 %
  double half_batch = 0;           // a / b
  double rate_limit = 0;           // 1 / b
  double elasticity = 0;           // at the knee: share of the step that is fixed cost
  i64 gain_knee = 0;               // smallest batch whose doubling gains < 15 %; 0: none measured
  i64 elastic_knee = 0;            // smallest batch with elasticity < 25 %; 0: none
  i64 largest = 0;                 // that fits
  bool budget = false;             // the budget ended it
  bool capped = false;             // the candidates ended before the knee
  bool bound_broken = false;       // faster than the bound: caches hold the data
  double spent = 0;
  std::string stop;                // why it went no further up
};

class Probe {
 public:
  explicit Probe(ProbeOptions options);
  bool done() const { return done_; }
  ProbeRequest ask() const { return request_; }
  void tell(const ProbeReport& report);
  // When done.
  const ProbeResult& result() const { return result_; }
  std::vector<Record> take_records();

 private:
  struct State {
    ProbeCandidate candidate;
    std::vector<double> warm;
    std::vector<double> windows;  // seconds per step
    std::vector<double> dram;
    bool ready = false;
  };
  enum class Phase : std::uint8_t { kUp, kDecide, kRefine, kDone };

  ProbePoint point(const State& s) const;
  State& state(i64 batch);
  void advance();
  void after_climb();
  bool climb_ends(std::string& why) const;
  std::optional<i64> knee_of(std::vector<i64>* unsure) const;
  void request_window(i64 batch);
  void finish(const std::string& why);
  void fit();
  double reference_rate() const;

  ProbeOptions options_;
  std::vector<State> states_;  // ascending
  std::size_t at_ = 0;         // climbing: index of the candidate
  Phase phase_ = Phase::kUp;
  ProbeRequest request_;
  ProbeResult result_;
  std::vector<Record> records_;
  std::vector<i64> turn_;      // ABBA order of contenders still to measure
  int steps_ = 0;
  double spent_ = 0;
  bool done_ = false;
  int refinements_ = 0;
  std::string stop_;
};

// The answer in plain words, one sentence a line.
std::string explain(const ProbeResult& result, i64 configured);

// The probe's grid: powers of two from max(1, min(8, capacity)) with `configured` and `capacity`
// (rounded down to a multiple of 8 from 8 on) in their places.
std::vector<i64> probe_grid(i64 capacity, i64 configured);

}  // namespace penstock::tuner
