// What to keep, when to save and what to do when saving fails: plain rules, without files or
// clocks.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "framework/io/manifest.h"

namespace penstock::io {

enum class Better { kLower, kHigher };

// Is `a` better than `b`? Only finite values can be.
bool improves(double a, std::optional<double> b, Better better);

// The best value of a sequence. NaN and infinite values are no improvement, whatever came before;
// the first finite value is.
class BestMetric {
 public:
  explicit BestMetric(Better better) : better_(better) {}
  // True when `value` is the new best.
  bool update(double value);
  std::optional<double> best() const { return best_; }
  // Updates since the last improvement: patience counts them.
  i64 without_improvement() const { return stale_; }

 private:
  Better better_;
  std::optional<double> best_;
  i64 stale_ = 0;
};

struct Retention {
  i64 keep_last = 3;  // the newest ones; 0 keeps all
  i64 keep_best = 1;  // the best finite metrics, apart from keep_last
  Better better = Better::kLower;
};
// Indices of `manifests` (valid ones, by rising sequence) that may go. The newest always stays.
std::vector<std::size_t> superseded(std::span<const Manifest> manifests,
                                    const Retention& retention);

enum class OnFull { kPause, kStop };
struct StoragePolicy {
  int patience = 3;  // failed saves in a row that are only warned about
  OnFull on_full = OnFull::kPause;
  double poll_seconds = 10;  // between tries while paused
};
// What follows from a failed save.
class FailureRule {
 public:
  enum class Action { kContinue, kPause, kStop };
  explicit FailureRule(const StoragePolicy& policy) : policy_(policy) {}
  // `last`: no save will follow this one.
  Action failed(bool last);
  void succeeded() { failures_ = 0; }
  int failures() const { return failures_; }

 private:
  StoragePolicy policy_;
  int failures_ = 0;
};

// When the next save is due, so that saving costs at most `budget` of the wall time. Seconds are of
// any steady clock.
class SaveInterval {
 public:
  struct Options {
    double seconds = 0;    // wanted interval; 0 chooses one from the cost
    double budget = 0.03;  // share of wall time that saving may cost
    double shortest = 60;  // of a chosen interval
    double longest = 600;  // of a chosen interval, unless the budget asks for more
  };
  SaveInterval(const Options& options, double now) : options_(options), last_(now) {}

  // Time to save, by the interval and by the budget.
  bool due(double now) const { return now - last_ >= interval(); }
  // Does the budget allow a save now? For runs that save every so many steps.
  bool affordable(double now) const { return now - last_ >= cost_ / options_.budget; }
  // A save was started at `now`, after training stood still for `cost` seconds because of it
  // (copying, waiting for the one before).
  void saved(double now, double cost);
  // Seconds between saves.
  double interval() const;
  // Is the budget what makes it this long?
  bool stretched() const;

 private:
  Options options_;
  double last_;
  double cost_ = 0;  // of one save: the larger of the last one and a decaying average
};

}  // namespace penstock::io
