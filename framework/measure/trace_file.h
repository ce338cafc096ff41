// trace.json: a window of steps as Chrome trace events, which Perfetto and chrome://tracing open.
// Ranges of steps, phases, ops and decisions; counter tracks for bandwidth, batch and workers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/core/target.h"
#include "framework/core/trace.h"

namespace penstock::measure {

// A row of the viewer.
enum class Track : std::uint8_t { kSteps, kPhases, kOps, kCopies, kLoader, kDecisions };

struct TraceOptions {
  i64 first_step = 0;  // the window: [first_step, first_step + steps)
  i64 steps = 50;
  i64 cap = i64(64) << 20;  // bytes of the whole file
  std::string process = "penstock";
};

// Collects events in memory and writes them whole. All functions are safe from any thread. Times
// are monotonic_seconds(). Outside of the window only decisions and counters are kept, and of those
// at most an eighth of the cap; events that no longer fit are counted and left out.
class TraceFile {
 public:
  explicit TraceFile(TraceOptions options = {});
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  using Args = std::vector<std::pair<std::string, std::string>>;

  // Step `step` begins and ends; events between are kept while it is inside the window.
  void begin_step(i64 step);
  void end_step();
  i64 step() const;     // under way; -1 between steps
  bool inside() const;  // a step of the window is under way
  bool over() const;    // the window has passed

  void range(Track track, std::string_view name, double begin, double end, const Args& args = {});
  void counter(std::string_view name, double time, double value);
  // A decision of the tuner: a mark across all rows, with the reason.
  void decision(std::string_view name, double time, const Args& args = {});

  i64 dropped() const;
  // The file's text, complete JSON at any moment.
  std::string text() const;
  // Replaces `path`. Throws StorageError.
  void write(const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Feeds ops, and phases made of consecutive ops, of the compute thread to a TraceFile; host times.
// On CUDA they show when ops were launched. Other listeners go on hearing.
class TraceListener final : public trace::Listener {
 public:
  // Installs itself on this thread; `file` must outlive it.
  explicit TraceListener(TraceFile& file);
  ~TraceListener() override;  // removes itself

  void begin(const char* name, trace::Phase phase) override;
  void end(const char* name, trace::Phase phase) override;

 private:
  void close_phase();

  TraceFile& file_;
  trace::Listener* outer_;
  double begin_ = 0;
  bool open_ = false;
  i64 step_ = -1;
  trace::Phase phase_ = trace::Phase::kOther;
  double phase_begin_ = 0;
  double phase_end_ = 0;
};

}  // namespace penstock::measure
