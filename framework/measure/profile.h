// The per-op profile of eager steps: how long each op took, what it had to move and compute, and
// how near its ceilings that is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/ledger.h"
#include "framework/core/trace.h"
#include "framework/measure/table.h"

namespace penstock::measure {

struct ProfileRow {
  std::string op;
  trace::Phase phase = trace::Phase::kOther;
  bool copy = false;  // a copy between host and device, not a kernel
  i64 calls = 0;
  double seconds = 0;
  double share = 0;  // of all rows
  double bytes = 0;
  double flops = 0;
  double kernels = 0;                        // launches
  std::optional<double> bytes_per_second;    // modelled bytes over time; none without time or bytes
  std::optional<double> share_of_bandwidth;  // of the achievable bandwidth
  std::optional<double> flops_per_second;
  std::optional<double> share_of_flops;  // of the matmul ceiling
};

enum class ProfileSort : std::uint8_t { kTime, kCalls, kBytes, kRate, kFlops, kName };
// "time", "calls", "bytes", "rate", "flops", "name"; none for another word.
std::optional<ProfileSort> profile_sort_named(const std::string& name);

// Totals over `steps` steps.
struct Profile {
  std::vector<ProfileRow> rows;  // longest first
  i64 steps = 0;
  double wall = 0;  // seconds of the steps, host clock
  double kernel_seconds = 0;
  double copy_seconds = 0;
  const char* clock = "";  // how ops were timed: "host clock" or "CUDA events"

  void sort(ProfileSort by);
  // The largest `rows` and the rest as one row; per step.
  TextTable table(std::size_t rows = 40) const;
  // "ops 91.0 %, memcpy 6.1 %, between ops 9.0 % of 12.4 ms a step (CUDA events)".
  std::string summary() const;
  // {"steps":..,"wall_seconds":..,"rows":[{..},..]}: values that were not measured are null.
  std::string json() const;
};

struct ProfileCeilings {
  std::optional<double> bytes_per_second;  // achievable
  std::optional<double> flops_per_second;  // matmul ceiling of the step's precision
};

// Hears ops on the compute thread: install around whole eager steps (start, steps, stop). On CUDA
// each op is bracketed by events on the compute stream, which are read after stop(), so nothing
// waits inside a step; a captured step has no ops to hear. Other listeners go on hearing.
class Profiler final : public trace::Listener {
 public:
  // `cuda`: ops run on the compute stream.
  explicit Profiler(bool cuda);
  ~Profiler() override;  // stops

  // On the compute thread, not inside an op.
  void start();
  void stop();
  // Around each step; only what happens inside counts.
  void begin_step();
  void end_step();
  // A copy that is no op of ours: the input's to the device, a read back. Seconds of the device.
  void copied(const std::string& name, double bytes, double seconds);

  void begin(const char* name, trace::Phase phase) override;
  void end(const char* name, trace::Phase phase) override;

  // After stop().
  Profile result(const ProfileCeilings& ceilings = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::measure
