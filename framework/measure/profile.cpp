#include "framework/measure/profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "framework/core/check.h"
#include "framework/core/cuda.h"
#include "framework/core/format.h"
#include "framework/measure/clock.h"
#include "framework/measure/escape.h"

namespace penstock::measure {
namespace {

using RawKey = std::pair<const char*, trace::Phase>;

struct Times {
  i64 calls = 0;
  double seconds = 0;
};

struct Copies {
  i64 calls = 0;
  double bytes = 0;
  double seconds = 0;
};

// An op on the stream whose events have not been read yet.
struct Pending {
  RawKey key;
  std::size_t begin = 0;  // indices into the pool
  std::size_t end = 0;
};

constexpr const char* kOutside = "(outside of ops)";
// Events that wait to be read; a long profile reads them at step ends instead of keeping all.
constexpr std::size_t kMostEvents = 8192;

std::string number_or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? format("{}", *value) : "null";
}

}  // namespace

struct Profiler::State {
  bool cuda = false;
  bool running = false;
  bool in_step = false;
  trace::Listener* outer = nullptr;
  std::optional<ledger::Recorder> recorder;
  std::map<RawKey, Times> times;
  std::map<std::string, Copies> copies;
  ledger::Table table;
  i64 steps = 0;
  double wall = 0;
  double step_begin = 0;
  double op_begin = 0;
  std::vector<cuda::Event> events;
  std::size_t used = 0;
  std::size_t op_event = 0;
  std::vector<Pending> pending;

  std::size_t mark() {
    if (used == events.size()) {
      events.emplace_back(true);
    }
    events[used].record(cuda::compute_stream());
    return used++;
  }
  // The stream must have passed all of them.
  void read_events() {
    for (const Pending& p : pending) {
      Times& t = times[p.key];
      ++t.calls;
      t.seconds += 1e-3 * double(events[p.end].milliseconds_since(events[p.begin]));
    }
    pending.clear();
    used = 0;
  }
};

std::optional<ProfileSort> profile_sort_named(const std::string& name) {
  static const std::map<std::string, ProfileSort> kNames = {
      {"time", ProfileSort::kTime}, {"calls", ProfileSort::kCalls}, {"bytes", ProfileSort::kBytes},
      {"rate", ProfileSort::kRate}, {"flops", ProfileSort::kFlops}, {"name", ProfileSort::kName}};
  const auto found = kNames.find(name);
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

Profiler::Profiler(bool cuda) : state_(std::make_unique<State>()) {
  state_->cuda = cuda;
}

Profiler::~Profiler() {
  try {
    stop();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device failed; whoever uses it next says so
  }
}

void Profiler::start() {
  State& s = *state_;
  check(!s.running, "profile: started twice; stop() comes first");
  s.outer = trace::listener();
  s.running = true;
  trace::set_listener(this);
}

void Profiler::stop() {
  State& s = *state_;
  if (!s.running) {
    return;
  }
  s.running = false;
  s.in_step = false;
  s.recorder.reset();
  if (trace::listener() == this) {
    trace::set_listener(s.outer);
  }
  if (s.cuda && !s.pending.empty()) {
    cuda::synchronize(cuda::compute_stream());
    s.read_events();
  }
}

void Profiler::begin_step() {
  State& s = *state_;
  check(s.running && !s.in_step, "profile: begin_step() belongs after start() and end_step()");
  if (s.cuda) {
    cuda::synchronize(cuda::compute_stream());  // the step before is not this one's time
    if (s.used + 512 > kMostEvents) {
      s.read_events();
    }
  }
  s.in_step = true;
  s.recorder.emplace();
  s.step_begin = monotonic_seconds();
}

void Profiler::end_step() {
  State& s = *state_;
  check(s.in_step, "profile: end_step() without begin_step()");
  if (s.cuda) {
    cuda::synchronize(cuda::compute_stream());
  }
  s.wall += monotonic_seconds() - s.step_begin;
  for (const auto& [key, totals] : s.recorder->table()) {
    s.table[key] += totals;
  }
  s.recorder.reset();
  s.in_step = false;
  ++s.steps;
}

void Profiler::copied(const std::string& name, double bytes, double seconds) {
  Copies& c = state_->copies[name];
  ++c.calls;
  c.bytes += bytes;
  c.seconds += seconds;
}

void Profiler::begin(const char* name, trace::Phase phase) {
  State& s = *state_;
  if (s.outer != nullptr) {
    s.outer->begin(name, phase);
  }
  if (s.in_step) {
    if (s.cuda) {
      s.op_event = s.mark();
    }
    s.op_begin = monotonic_seconds();
  }
}

void Profiler::end(const char* name, trace::Phase phase) {
  State& s = *state_;
  if (s.in_step) {
    if (s.cuda) {
      s.pending.push_back({{name, phase}, s.op_event, s.mark()});
    } else {
      Times& t = s.times[{name, phase}];
      ++t.calls;
      t.seconds += monotonic_seconds() - s.op_begin;
    }
  }
  if (s.outer != nullptr) {
    s.outer->end(name, phase);
  }
}

Profile Profiler::result(const ProfileCeilings& ceilings) const {
  const State& s = *state_;
  check(!s.running, "profile: result() comes after stop()");
  std::map<ledger::Key, ProfileRow> rows;
  const auto row = [&](const std::string& op, trace::Phase phase) -> ProfileRow& {
    ProfileRow& r = rows[{op, phase}];
    r.op = op;
    r.phase = phase;
    return r;
  };
  for (const auto& [key, times] : s.times) {
    ProfileRow& r = row(key.first, key.second);
    r.calls += times.calls;
    r.seconds += times.seconds;
  }
  for (const auto& [key, totals] : s.table) {
    ProfileRow& r = row(key.op.empty() ? kOutside : key.op, key.phase);
    r.bytes += totals.bytes();
    r.flops += totals.flops;
    r.kernels += totals.kernels;
  }
  Profile p;
  p.steps = s.steps;
  p.wall = s.wall;
  p.clock = s.cuda ? "CUDA events" : "host clock";
  for (auto& [key, r] : rows) {
    p.kernel_seconds += r.seconds;
    p.rows.push_back(std::move(r));
  }
  for (const auto& [name, copies] : s.copies) {
    ProfileRow r;
    r.op = name;
    r.phase = trace::Phase::kInput;
    r.copy = true;
    r.calls = copies.calls;
    r.seconds = copies.seconds;
    r.bytes = copies.bytes;
    p.copy_seconds += r.seconds;
    p.rows.push_back(std::move(r));
  }
  const double all = p.kernel_seconds + p.copy_seconds;
  for (ProfileRow& r : p.rows) {
    r.share = all > 0 ? r.seconds / all : 0;
    if (r.seconds > 0 && r.bytes > 0) {
      r.bytes_per_second = r.bytes / r.seconds;
      // The bus, not DRAM, limits a copy.
      if (ceilings.bytes_per_second && !r.copy) {
        r.share_of_bandwidth = *r.bytes_per_second / *ceilings.bytes_per_second;
      }
    }
    if (r.seconds > 0 && r.flops > 0) {
      r.flops_per_second = r.flops / r.seconds;
      if (ceilings.flops_per_second) {
        r.share_of_flops = *r.flops_per_second / *ceilings.flops_per_second;
      }
    }
  }
  p.sort(ProfileSort::kTime);
  return p;
}

void Profile::sort(ProfileSort by) {
  const auto value = [by](const ProfileRow& r) {
    switch (by) {
      case ProfileSort::kTime: return r.seconds;
      case ProfileSort::kCalls: return double(r.calls);
      case ProfileSort::kBytes: return r.bytes;
      case ProfileSort::kRate: return r.bytes_per_second.value_or(-1);
      case ProfileSort::kFlops: return r.flops;
      case ProfileSort::kName: return 0.0;
    }
    return 0.0;
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const ProfileRow& a, const ProfileRow& b) {
    return by == ProfileSort::kName ? std::pair(a.op, a.phase) < std::pair(b.op, b.phase)
                                    : value(a) > value(b);
  });
}

TextTable Profile::table(std::size_t most) const {
  TextTable table{.columns = {{"op", Align::kLeft},
                              {"phase", Align::kLeft},
                              {"calls"},
                              {"time"},
                              {"share"},
                              {"bytes"},
                              {"rate"},
                              {"of ceiling"},
                              {"FLOP/s"},
                              {"of ceiling"}}};
  const double per = steps > 0 ? 1 / double(steps) : 1;
  const auto add = [&](const ProfileRow& r, const std::string& name, const std::string& phase) {
    const auto some = [](double value) { return value > 0 ? std::optional(value) : std::nullopt; };
    table.rows.push_back({name, phase, r.calls > 0 ? cell(double(r.calls) * per, "{:.4g}") : "",
                          r.calls > 0 ? seconds_cell(r.seconds * per) : "",
                          r.calls > 0 ? percent_cell(r.share) : "", bytes_cell(some(r.bytes * per)),
                          rate_cell(r.bytes_per_second), percent_cell(r.share_of_bandwidth),
                          flops_cell(r.flops_per_second), percent_cell(r.share_of_flops)});
  };
  const std::size_t shown = rows.size() <= most + 1 ? rows.size() : most;
  for (std::size_t i = 0; i < shown; ++i) {
    add(rows[i], rows[i].op, rows[i].copy ? "memcpy" : name_of(rows[i].phase));
  }
  if (shown < rows.size()) {
    ProfileRow rest;
    for (std::size_t i = shown; i < rows.size(); ++i) {
      rest.calls += rows[i].calls;
      rest.seconds += rows[i].seconds;
      rest.share += rows[i].share;
      rest.bytes += rows[i].bytes;
    }
    add(rest, format("{} more", rows.size() - shown), "");
  }
  return table;
}

std::string Profile::summary() const {
  if (steps == 0 || !(wall > 0)) {
    return "no step was profiled";
  }
  // Copies may run beside kernels, so the parts need not add up to the whole.
  const double between = std::max(0.0, wall - kernel_seconds);
  std::string text = format("ops {:.1f} %", 100 * kernel_seconds / wall);
  if (copy_seconds > 0) {
    text += format(", memcpy {:.1f} %", 100 * copy_seconds / wall);
  }
  return text + format(", between ops {:.1f} % of {} a step ({})", 100 * between / wall,
                       seconds_text(wall / double(steps)), clock);
}

std::string Profile::json() const {
  std::string out = format(
      "{{\"steps\":{},\"wall_seconds\":{},\"kernel_seconds\":{},\"copy_seconds\":{},"
      "\"clock\":\"{}\",\"rows\":[",
      steps, wall, kernel_seconds, copy_seconds, escape(clock, Syntax::kJson));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ProfileRow& r = rows[i];
    out += format("{}{{\"op\":\"{}\",\"phase\":\"{}\",\"copy\":{},\"calls\":{},\"seconds\":{},",
                  i == 0 ? "" : ",", escape(r.op, Syntax::kJson), name_of(r.phase), r.copy, r.calls,
                  number_or_null(r.seconds));
    out += format("\"share\":{},\"bytes\":{},\"flops\":{},\"kernels\":{},", number_or_null(r.share),
                  number_or_null(r.bytes), number_or_null(r.flops), number_or_null(r.kernels));
    out += format("\"bytes_per_second\":{},\"share_of_bandwidth\":{},",
                  number_or_null(r.bytes_per_second), number_or_null(r.share_of_bandwidth));
    out += format("\"flops_per_second\":{},\"share_of_flops\":{}}",
                  number_or_null(r.flops_per_second), number_or_null(r.share_of_flops));
  }
  return out + "]}";
}

}  // namespace penstock::measure
