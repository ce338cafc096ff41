// The step account: where the wall time of an interval went, as terms that exclude each other and
// add up. Pure arithmetic over time stamps that others take; no clock, no device.
//
//   wall = data_wait + h2d_exposed + launch_gap + kernels + other + unaccounted
//
// The timeline is the compute stream's (on the CPU the consumer thread's). Idle time between two
// steps is data_wait while the host was inside the loader's next(), `other` while it was in
// something timed on its own, h2d_exposed while the next input's copy was unfinished, and
// launch_gap for the rest; on the CPU that rest is nobody's and stays unaccounted.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/target.h"

namespace penstock::measure {

// A stretch of time on the host's monotonic clock, in seconds.
struct Span {
  double begin = 0;
  double end = 0;
  double length() const { return end > begin ? end - begin : 0; }
};

// One instant on both clocks. Device times are kept as distances from an event that is recorded
// anew each interval, because elapsed times between events lose precision with distance.
struct Anchor {
  double host = 0;    // seconds
  double device = 0;  // seconds
  double host_of(double device_seconds) const { return host + (device_seconds - device); }
  Span host_of(const Span& span) const { return {host_of(span.begin), host_of(span.end)}; }
};

// What the critical (last-arriving) sample of a batch was doing while the consumer waited for it.
struct WaitSplit {
  double fetch = 0;       // blocked in I/O
  double decode = 0;      // on a CPU
  double queueing = 0;    // not started: too few workers or credits
  double scheduling = 0;  // runnable, not running: too few cores
  double order = 0;       // done, but an earlier sample was not

  double total() const { return fetch + decode + queueing + scheduling + order; }
  WaitSplit scaled(double by) const;
  WaitSplit& operator+=(const WaitSplit& more);
};

enum class OtherKind : std::uint8_t { kEvaluation, kCheckpoint, kLog, kTuner };
inline constexpr std::size_t kOtherKinds = 4;
const char* name_of(OtherKind kind);

// One interval, in seconds. Sums of intervals are accounts too.
struct StepAccount {
  double wall = 0;
  double data_wait = 0;
  WaitSplit wait;  // data_wait by cause; less than it where the loader could not tell
  double h2d_exposed = 0;
  double launch_gap = 0;
  double kernels = 0;
  std::array<double, kOtherKinds> other{};
  double unaccounted = 0;

  double hidden_wait = 0;     // inside next() while queued work ran; costs nothing
  double memcpy_total = 0;    // copy time, hidden or not
  double memcpy_exposed = 0;  // copy time during which the compute stream was idle
  double busy = 0;            // between the start and end events of steps
  i64 steps = 0;
  i64 samples = 0;
  // Seconds since the step was traced whose kernel / launch split was applied to `busy`. Without a
  // traced step, launch gaps inside steps cannot be told from kernels and count as those.
  std::optional<double> split_age;

  double other_total() const;
  // The five terms and `other`: wall without what is unaccounted.
  double accounted() const;
  double share(double part) const { return wall > 0 ? part / wall : 0; }
  StepAccount& operator+=(const StepAccount& more);
};

// A step that was traced kernel by kernel: how much of its event pair was kernels and copies. For a
// captured step `pair` is the replay's own event pair and `kernels` the eager trace's kernel time.
struct KernelSplit {
  double kernels = 0;  // seconds
  double copies = 0;   // seconds of memcpy among them
  double pair = 0;     // seconds between the step's start and end events
  double traced_at = 0;
};

// Adds time stamps up to accounts. All on the host's clock; each kind in its own order. A step is
// told after its end event has passed, and by then everything that the host began before must have
// been told: a loop that reads events between its own spans does so by itself.
class Account {
 public:
  enum class Timeline : std::uint8_t { kDevice, kHost };
  // Idle time counts from `begin`.
  Account(Timeline timeline, double begin);

  // The consumer was inside next(). `split` may add up to less than the span.
  void waited(const Span& next, const WaitSplit& split);
  // The host was busy with something else that is timed on its own.
  void spent(OtherKind kind, const Span& span);
  // An input copy: handed to its stream at `issued`, done by the device during `copy`.
  void copied(double issued, const Span& copy);
  // A step ran between its start and end events.
  void ran(const Span& step, i64 samples);
  // From now on event pairs are split like this step's.
  void traced(const KernelSplit& split);

  // Ends the interval at the end of the last step told and begins the next one there. `end`: that
  // same instant as the next interval's anchor sees it; clocks that drift show as unaccounted.
  StepAccount close(std::optional<double> end = std::nullopt);

 private:
  struct Pending {
    Span span;
    WaitSplit split;
    double fresh = 0;    // fell into idle time, not charged yet
    double charged = 0;  // fell into idle time and is charged
    OtherKind kind = OtherKind::kLog;
    double copy_begin = 0;
  };
  void idle(const Span& gap);
  void retire(double before);

  Timeline timeline_;
  double begin_;     // of the interval
  double position_;  // end of the last step
  std::deque<Pending> waits_;
  std::deque<Pending> others_;
  std::deque<Pending> copies_;
  std::vector<double> cuts_;
  std::optional<KernelSplit> split_;
  StepAccount sum_;
};

// "data wait 3.1 % (fetch 2.8), kernels 91.0 %, ...": one line for people, terms under 0.05 % left
// out.
std::string describe(const StepAccount& account);

}  // namespace penstock::measure
