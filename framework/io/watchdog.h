// Says where a run hangs. The training loop tells what it is doing; when nothing advances for
// max(60 s, 20 median steps) the watchdog logs stage, worker, sample and file and writes
// stall.json.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "framework/core/check.h"

namespace penstock::io {

// What one thread is at. Fields that do not apply keep their defaults.
struct Activity {
  std::string stage;  // "read", "decode", "step", "evaluation", "save", ...
  int worker = -1;
  i64 sample = -1;
  std::string file;
  double seconds = 0;  // for how long
};

// The rule alone, on whatever clock the caller keeps; not synchronised.
class StallRule {
 public:
  StallRule(double minimum_seconds, double median_factor, double now)
      : minimum_(minimum_seconds), factor_(median_factor), last_(now) {}
  void advanced(double now) { last_ = now; }
  // Time that does not count: nothing could have advanced.
  void excuse(double seconds) { last_ += seconds; }
  void step_took(double seconds);
  double limit() const;
  double silent_for(double now) const { return now - last_; }
  bool stalled(double now) const { return silent_for(now) > limit(); }

 private:
  static constexpr std::size_t kSteps = 64;  // the median is taken over the latest of them
  double minimum_;
  double factor_;
  double last_;
  std::vector<double> steps_;
  std::size_t next_ = 0;
};

class Watchdog {
 public:
  struct Options {
    double minimum_seconds = 60;
    double median_factor = 20;
    std::string report_path;  // <run>/stall.json; empty for none
    bool stop = false;        // a stall ends the run with StalledError, instead of only being named
    // With `stop`, called on the watchdog's thread when the training thread has not even noticed
    // `grace_seconds` after the report: it hangs in a call. main() ends the process there.
    std::function<void()> abandon{};
    double grace_seconds = 30;
  };
  explicit Watchdog(Options options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The training loop enters a stage: this counts as an advance.
  void enter(std::string_view stage, i64 sample = -1, std::string_view file = {});
  // A step is done; `seconds` feeds the median.
  void step_done(double seconds);
  // Asked at a stall for what other threads (loader workers) are at; must not wait for locks that a
  // stuck thread may hold. Null for none.
  void set_inspector(std::function<std::vector<Activity>()> inspector);
  // Throws StalledError if `stop` is set and the watchdog has found a stall. Call it once a step
  // and wherever the training thread waits.
  void throw_if_stalled();
  // Stalls reported so far.
  int stalls() const;

 private:
  void watch();
  void report(double silent, std::unique_lock<std::mutex>& lock);
  double now() const;

  Options options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  StallRule rule_;
  Activity main_;
  double main_since_ = 0;
  std::function<std::vector<Activity>()> inspector_;
  std::optional<double> reported_;  // when the present stall was reported
  std::string message_;
  int stalls_ = 0;
  bool abandoned_ = false;
  bool ending_ = false;
  std::thread thread_;
};

// stall.json: {"seconds": ..., "limit": ..., "activities": [{...}]}.
std::string stall_text(double silent, double limit, const std::vector<Activity>& activities);

}  // namespace penstock::io
