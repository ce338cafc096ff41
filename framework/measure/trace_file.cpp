#include "framework/measure/trace_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>

#include "framework/core/format.h"
#include "framework/measure/clock.h"
#include "framework/measure/escape.h"
#include "framework/measure/text_file.h"

namespace penstock::measure {
namespace {

constexpr std::size_t kTracks = 6;
constexpr std::size_t kLongestName = 200;
// A counter's event with a name of usual length; longer ones are cut to it.
constexpr std::size_t kCounterBytes = 160;

const char* name_of(Track track) {
  switch (track) {
    case Track::kSteps: return "steps";
    case Track::kPhases: return "phases";
    case Track::kOps: return "ops";
    case Track::kCopies: return "copies";
    case Track::kLoader: return "loader";
    case Track::kDecisions: return "decisions";
  }
  return "?";
}

std::string text_of(std::string_view text, std::size_t limit = kLongestName) {
  return "\"" + escape(text, Syntax::kJson, limit) + "\"";
}

std::string args_of(const TraceFile::Args& args) {
  std::string out = "{";
  for (const auto& [key, value] : args) {
    out += (out.size() > 1 ? "," : "") + text_of(key) + ":" + text_of(value, 1000);
  }
  return out + "}";
}

}  // namespace

struct TraceFile::State {
  TraceOptions options;
  double origin = 0;
  mutable std::mutex mutex;
  std::string body;       // events of the window, each beginning with a comma
  std::string decisions;  // likewise
  std::map<std::string, std::vector<std::pair<double, double>>> counters;
  std::size_t counter_events = 0;
  i64 step = -1;  // under way
  double step_begin = 0;
  std::optional<double> window_begin;
  std::optional<double> window_end;
  i64 dropped = 0;

  std::string micros(double time) const { return format("{:.3f}", 1e6 * (time - origin)); }
  bool in_window(i64 s) const {
    return s >= options.first_step && s < options.first_step + options.steps;
  }
  std::size_t cap() const { return std::size_t(std::max<i64>(options.cap, 16384)); }
  void keep(std::string& where, std::string event, std::size_t room) {
    if (where.size() + event.size() > room) {
      ++dropped;
    } else {
      where += event;
    }
  }
  void add_range(Track track, std::string_view name, double begin, double end, const Args& args) {
    if (!std::isfinite(begin) || !std::isfinite(end)) {
      return;
    }
    std::string event =
        format(",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{},\"dur\":{:.3f},\"name\":{}",
               int(track) + 1, micros(begin), 1e6 * std::max(0.0, end - begin), text_of(name));
    if (!args.empty()) {
      event += ",\"args\":" + args_of(args);
    }
    keep(body, event + "}", cap() / 4 * 3);
  }
};

TraceFile::TraceFile(TraceOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->origin = monotonic_seconds();
}
TraceFile::~TraceFile() = default;

void TraceFile::begin_step(i64 step) {
  const double now = monotonic_seconds();
  const std::lock_guard lock(state_->mutex);
  state_->step = step;
  state_->step_begin = now;
  if (state_->in_window(step)) {
    state_->window_begin = state_->window_begin.value_or(now);
    state_->window_end.reset();
  } else if (state_->window_begin && !state_->window_end) {
    state_->window_end = now;
  }
}

void TraceFile::end_step() {
  const double now = monotonic_seconds();
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (s.step >= 0 && s.in_window(s.step)) {
    s.add_range(Track::kSteps, format("step {}", s.step), s.step_begin, now, {});
    if (s.step == s.options.first_step + s.options.steps - 1) {
      s.window_end = now;
    }
  }
  s.step = -1;
}

i64 TraceFile::step() const {
  const std::lock_guard lock(state_->mutex);
  return state_->step;
}
bool TraceFile::inside() const {
  const std::lock_guard lock(state_->mutex);
  return state_->step >= 0 && state_->in_window(state_->step);
}
bool TraceFile::over() const {
  const std::lock_guard lock(state_->mutex);
  return state_->window_end.has_value();
}

void TraceFile::range(Track track, std::string_view name, double begin, double end,
                      const Args& args) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  // What began before the window but reaches into it explains the window.
  if (s.window_begin && end >= *s.window_begin && (!s.window_end || begin < *s.window_end)) {
    s.add_range(track, name, begin, end, args);
  }
}

void TraceFile::counter(std::string_view name, double time, double value) {
  if (!std::isfinite(value) || !std::isfinite(time)) {
    return;  // not measured: no point, never 0
  }
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  s.counters[std::string(name.substr(0, kCounterBytes / 4))].emplace_back(time, value);
  if (++s.counter_events * kCounterBytes > s.cap() / 8) {
    // A long run keeps its whole length at half the density.
    s.counter_events = 0;
    for (auto& [key, points] : s.counters) {
      std::size_t kept = 0;
      for (std::size_t i = 0; i < points.size(); i += 2) {
        points[kept++] = points[i];
      }
      s.dropped += i64(points.size() - kept);
      points.resize(kept);
      s.counter_events += kept;
    }
  }
}

void TraceFile::decision(std::string_view name, double time, const Args& args) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  s.keep(s.decisions,
         format(",\n{{\"ph\":\"i\",\"s\":\"g\",\"pid\":1,\"tid\":{},\"ts\":{},\"name\":{},"
                "\"args\":{}}",
                int(Track::kDecisions) + 1, s.micros(time), text_of(name), args_of(args)),
         s.cap() / 16);
}

i64 TraceFile::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

std::string TraceFile::text() const {
  const std::lock_guard lock(state_->mutex);
  const State& s = *state_;
  std::string out = format(
      "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"events left out\":\"{}\"}},"
      "\"traceEvents\":[\n{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":"
      "{{\"name\":{}",
      s.dropped, text_of(s.options.process));
  out += "}}";
  for (std::size_t t = 0; t < kTracks; ++t) {
    out += format(
        ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}",
        t + 1, text_of(name_of(Track(t))));
    out += "}}";
  }
  out += s.body;
  out += s.decisions;
  for (const auto& [name, points] : s.counters) {
    const std::string quoted = text_of(name, kCounterBytes / 4);
    for (const auto& [time, value] : points) {
      out += format(",\n{{\"ph\":\"C\",\"pid\":1,\"ts\":{},\"name\":{},\"args\":{{\"value\":{}",
                    s.micros(time), quoted, value);
      out += "}}";
    }
  }
  return out + "\n]}\n";
}

void TraceFile::write(const std::string& path) const {
  write_whole_file(path, text());
}

// ---- ops ---------------------------------------------------------------------------------------

TraceListener::TraceListener(TraceFile& file) : file_(file), outer_(trace::listener()) {
  trace::set_listener(this);
}

TraceListener::~TraceListener() {
  close_phase();
  if (trace::listener() == this) {
    trace::set_listener(outer_);
  }
}

void TraceListener::begin(const char* name, trace::Phase phase) {
  if (outer_ != nullptr) {
    outer_->begin(name, phase);
  }
  const i64 step = file_.step();
  if (open_ && (phase != phase_ || step != step_)) {
    close_phase();
  }
  begin_ = monotonic_seconds();
  if (!open_ && file_.inside()) {
    open_ = true;
    phase_ = phase;
    step_ = step;
    phase_begin_ = begin_;
  }
}

void TraceListener::end(const char* name, trace::Phase phase) {
  if (open_) {
    phase_end_ = monotonic_seconds();
    file_.range(Track::kOps, name, begin_, phase_end_);
  }
  if (outer_ != nullptr) {
    outer_->end(name, phase);
  }
}

void TraceListener::close_phase() {
  if (open_) {
    file_.range(Track::kPhases, trace::name_of(phase_), phase_begin_, phase_end_);
  }
  open_ = false;
}

}  // namespace penstock::measure
