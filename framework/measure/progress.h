// The progress line: one line that is redrawn on a terminal, plain lines elsewhere, and the
// estimate of when the whole run ends, evaluation and saving included.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "framework/core/target.h"
#include "framework/measure/account.h"
#include "framework/measure/meter.h"

namespace penstock::measure {

// What the line shows. A field that was not measured is left out, never shown as 0.
struct Progress {
  i64 epoch = 0;                      // counted from 1; 0: no epochs
  i64 epochs = 0;                     // 0: unknown
  std::optional<double> epoch_share;  // of this epoch, 0..1
  double share = 0;                   // of the whole run, 0..1; paces plain lines
  std::string activity;               // instead of training: "evaluating", "probing batch 128"
  std::optional<double> loss;
  std::optional<double> samples_per_second;
  std::optional<Bandwidth> dram;
  std::optional<double> data_wait;     // of wall, 0..1
  std::optional<double> memory_used;   // bytes
  std::optional<double> memory_total;  // bytes
  i64 batch = 0;                       // 0: not known yet
  i64 accumulate = 1;
  int workers = 0;
  int depth = 0;
  std::string limit;                   // the verdict's word: "input", "memory"
  std::optional<double> seconds_left;  // of the whole run
  std::string ends;                    // local time at its end, "18:05"; empty to leave out
};

struct ProgressStyle {
  int width = 0;  // columns; the line is cut to them. 0: whole
  bool color = false;
};

// "epoch 3/20 41% | loss 0.412 | 9.8k samples/s | DRAM 2.9 TB/s 68% gpm | wait 1.2% |
// 31.2/139 GiB | batch 208x1 W6 D3 | memory | ETA 12:40 (ends 18:05)". The share of DRAM is that of
// what is achievable. Where the width does not hold everything, less important fields go first and
// the rest is cut. Printable ASCII, whatever the fields hold.
std::string progress_text(const Progress& progress, const ProgressStyle& style = {});

// What the whole run will do, from its first sample on. Revised when it changes.
struct RunPlan {
  i64 samples = 0;  // to train
  // How often in the whole run; none: as much of the time as so far.
  std::optional<i64> evaluations;
  std::optional<i64> saves;
  // What one costs until one was timed: samples of an evaluation, seconds that a save stops the
  // run.
  i64 evaluation_samples = 0;
  double save_seconds = 0;
  std::optional<double> max_seconds;  // train.max_time
};

// How long the run still takes. Pure arithmetic on the times that it is told, in seconds on any
// one clock. Recent speed counts most, so that a change of batch or workers shows soon.
class EtaEstimator {
 public:
  // `done`: samples before this session (a resumed run), with `evaluations` and `saves` likewise.
  EtaEstimator(const RunPlan& plan, double now, i64 done = 0, i64 evaluations = 0, i64 saves = 0);
  void revise(const RunPlan& plan);
  // Training has reached the absolute sample position `samples`.
  void trained(double now, i64 samples);
  // The run did something else for `seconds` until `now`; part of no sample's time.
  void spent(OtherKind kind, double now, double seconds);
  // Speed before now says little about what follows: a retune, a recovered device.
  void changed();
  // None before there is a rate.
  std::optional<double> seconds_left(double now) const;
  // Samples a second while training, the estimate's own; none before two calls of trained().
  std::optional<double> rate() const;

 private:
  struct Kind {
    i64 count = 0;       // in the whole run so far
    i64 timed = 0;       // in this session
    double seconds = 0;  // of this session
    double mean = 0;     // of one; recent ones weigh more
  };
  struct Stretch {
    double samples = 0;
    double seconds = 0;
  };
  double left_of(const Kind& kind, std::optional<i64> whole, double guess, double train_left) const;

  RunPlan plan_;
  double begin_;
  double last_;             // time of the last trained() or spent()
  double trained_at_;       // of the last trained()
  double other_since_ = 0;  // seconds of other things since then
  i64 first_;
  i64 position_;
  double train_seconds_ = 0;
  Stretch warm_up_;  // counts until there is enough of `steady_`
  Stretch steady_;   // recent samples weigh more
  Kind evaluation_;
  Kind save_;
};

struct ProgressOptions {
  bool quiet = false;             // nothing at all
  std::optional<bool> terminal;   // none: whether stderr is one that can move its cursor
  std::optional<bool> color;      // none: on a terminal, unless NO_COLOR is set
  std::optional<int> width;       // none: asked of the terminal at each drawing
  double redraw = 0.1;            // seconds between drawings at least
  double plain_seconds = 30;      // plain lines: at least this far apart ...
  double plain_share = 0.01;      // ... and this share of the run
  std::function<double()> clock;  // none: monotonic_seconds
  std::function<void(std::string_view)> draw;  // none: stderr; gets escape codes
  std::function<void(std::string_view)> line;  // none: log::info; one plain line
};

// Owns the terminal's last line while it lives and steps aside for every log line. One at a time in
// a process: the newest draws. All functions are safe from any thread.
class ProgressLine {
 public:
  explicit ProgressLine(ProgressOptions options = {});
  ~ProgressLine();  // finishes
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows `progress` now or at the next call that is due; cheap when nothing is due.
  void update(const Progress& progress);
  // Would update() show anything now? For callers to whom filling a Progress costs something.
  bool due() const;
  // Shows the last state for good and ends the line; later updates show nothing.
  void finish();

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// Local time of day `seconds` from now, "18:05", with days ahead as "18:05 +2d".
std::string time_of_day(double seconds);

}  // namespace penstock::measure
