#include "framework/measure/meter.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "framework/core/ledger.h"
#include "framework/core/log.h"
#include "framework/measure/clock.h"
#include "framework/measure/nvml.h"

namespace penstock::measure {
namespace {

constexpr std::size_t kWindows = 2048;      // about seven minutes at the live period
constexpr int kStrikes = 3;                 // failures in a row that end a source
constexpr double kProbeSeconds = 0.15;      // from the first sample to the first value
constexpr double kUtilizationPeriod = 1.0;  // the driver's own figure moves no faster
constexpr double kProcessesPeriod = 10.0;
constexpr double kClockSlack = 1e-6;  // sums of periods are equal only nearly

// What one tick adds. Absent numbers are those that could not be had.
struct Window {
  double begin = 0;
  double end = 0;
  Source source = Source::kNone;       // the source in force
  std::optional<double> gpm_share;     // of the theoretical bandwidth
  std::optional<double> ledger_bytes;  // moved in the window
  std::optional<double> clock_mhz;
  double length() const { return end - begin; }
};

}  // namespace

const char* name_of(Source source) {
  switch (source) {
    case Source::kNone: return "none";
    case Source::kGpm: return "gpm";
    case Source::kLedger: return "ledger";
  }
  return "?";
}

struct BandwidthMeter::State {
  explicit State(MeterOptions given) : options(std::move(given)), achievable(options.achievable) {}

  const MeterOptions options;

  // ---- the sampler's own -----------------------------------------------------------------------
  std::unique_ptr<Nvml> nvml;    // null: not open, or lost
  bool counters_proven = false;  // GPM has given a value since it was opened
  bool tried = false;
  int strikes = 0;
  double next_try = 0;
  std::optional<double> sampled_at;  // time of the newest GPM sample
  std::optional<double> last_tick;
  double last_ledger = 0;
  double next_utilization = 0;
  double next_processes = 0;

  // ---- shared, under the mutex -----------------------------------------------------------------
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::array<Window, kWindows> ring{};
  std::size_t pushed = 0;
  Source source = Source::kNone;
  std::string reason;
  std::optional<double> achievable;
  DeviceReadings readings;
  std::uint64_t throttle = 0;
  bool throttle_known = false;
  bool live = false;
  bool stopping = false;

  std::thread thread;

  bool wants_counters() const { return !options.pci_bus_id.empty(); }

  // Newest first, until f returns false.
  template <class F>
  void for_each_window(F&& f) const {
    const std::size_t count = std::min(pushed, kWindows);
    for (std::size_t i = 0; i < count; ++i) {
      if (!f(ring[(pushed - 1 - i) % kWindows])) {
        return;
      }
    }
  }

  // Calls f for every window wholly inside [from, to].
  template <class F>
  void for_each_inside(double from, double to, F&& f) const {
    for_each_window([&](const Window& w) {
      if (w.begin >= from - kClockSlack && w.end <= to + kClockSlack) {
        f(w);
      }
      return w.end >= from;
    });
  }

  Bandwidth describe(Source from, double bytes_per_second, double window) const {
    Bandwidth b{.bytes_per_second = bytes_per_second, .source = from, .window_ms = window * 1e3};
    if (options.theoretical) {
      b.share_of_theoretical = bytes_per_second / *options.theoretical;
    }
    if (achievable) {
      b.share_of_achievable = bytes_per_second / *achievable;
    }
    return b;
  }

  // Bytes a second of one window under one source; none when it has no value of that source.
  std::optional<double> rate(const Window& w, Source from) const {
    if (from == Source::kGpm && w.gpm_share && options.theoretical) {
      return *w.gpm_share * *options.theoretical;
    }
    if (from == Source::kLedger && w.ledger_bytes && w.length() > 0) {
      return *w.ledger_bytes / w.length();
    }
    return std::nullopt;
  }

  // The counters are gone or never came: one line, then silence until they are back.
  void step_down(const std::string& why, double now) {
    nvml.reset();
    counters_proven = false;
    strikes = 0;
    sampled_at.reset();
    next_try = now + options.retry;
    bool told = false;
    {
      const std::lock_guard lock(mutex);
      told = !reason.empty();
      reason = why;
      readings = {};
      throttle_known = false;
    }
    if (!told) {
      log::warning("bandwidth: {}; the ledger of our own ops stands in for the counters", why);
    }
  }

  void open(double now) {
    tried = true;
    std::string why;
    nvml =
        options.theoretical ? Nvml::open(options.nvml_library, options.pci_bus_id, why) : nullptr;
    if (!options.theoretical) {
      why = "the device's peak bandwidth is not known, which its counters are a share of";
    }
    if (nvml == nullptr || !nvml->open_gpm(why)) {
      step_down(why, now);
      return;
    }
    strikes = 0;
    sampled_at = now;
    next_utilization = next_processes = now;
    const auto max_clock = nvml->max_sm_clock_mhz();
    const std::lock_guard lock(mutex);
    readings.max_sm_clock_mhz = max_clock;
  }

  void fail(int code, double now) {
    // The first pair decides whether the counters can be had at all; later ones may miss twice.
    ++strikes;
    if (!counters_proven || strikes >= kStrikes) {
      std::string why = "GPM counters " + std::string(counters_proven ? "lost: " : "refused: ") +
                        nvml->error_text(code);
      if (code == kNvmlNoPermission) {
        why += "; root or CAP_SYS_ADMIN may read them";
      }
      step_down(why, now);
    }
  }

  // The counters' share of this window, and the readings beside it.
  void read_device(double now, Window& window) {
    GpmValues values;
    int code = nvml->take_sample();
    if (code == kNvmlSuccess) {
      const bool long_enough = sampled_at && now - *sampled_at > kShortestWindow;
      const double begin = sampled_at.value_or(now);
      sampled_at = now;
      if (!long_enough) {
        return;
      }
      code = nvml->evaluate(values);
      if (code == kNvmlSuccess) {
        window.gpm_share = values.dram_share;
        window.begin = begin;
        strikes = 0;
      }
    }
    if (code != kNvmlSuccess) {
      fail(code, now);  // the next pair reaches back to the last sample that worked
      return;
    }
    window.clock_mhz = nvml->sm_clock_mhz();
    const bool ask_utilization = now >= next_utilization;
    const bool ask_processes = now >= next_processes;
    std::optional<Nvml::Utilization> utilization;
    std::optional<std::uint64_t> reasons;
    std::optional<int> others;
    if (ask_utilization) {
      utilization = nvml->utilization();
      reasons = nvml->throttle_reasons();
      next_utilization = now + kUtilizationPeriod;
    }
    if (ask_processes) {
      others = nvml->other_processes();
      next_processes = now + kProcessesPeriod;
    }
    bool back = false;
    {
      const std::lock_guard lock(mutex);
      readings.sm_share = values.sm_share;
      readings.tensor_share = values.tensor_share;
      readings.pcie_sent = values.pcie_sent;
      readings.pcie_received = values.pcie_received;
      readings.sm_clock_mhz = window.clock_mhz;
      if (ask_utilization) {
        readings.gpu_util = utilization ? std::optional(utilization->gpu) : std::nullopt;
        readings.memory_util = utilization ? std::optional(utilization->memory) : std::nullopt;
        throttle_known = reasons.has_value();
        throttle = reasons.value_or(0);
      }
      if (ask_processes) {
        readings.other_processes = others;
      }
      back = !reason.empty();
      reason.clear();
    }
    counters_proven = true;
    if (back) {
      log::info("bandwidth: the GPM counters are back");
    }
  }

  void tick(double now) {
    if (last_tick && now - *last_tick <= kShortestWindow) {
      return;
    }
    if (wants_counters() && nvml == nullptr && (!tried || now >= next_try)) {
      open(now);
    }
    const double ledger = ledger::totals().bytes();
    Window window{.begin = last_tick.value_or(now), .end = now};
    if (last_tick && ledger > 0) {
      window.ledger_bytes = ledger - last_ledger;
    }
    const double begin = window.begin;
    if (nvml != nullptr && sampled_at.value_or(-1) != now) {
      read_device(now, window);
    }
    if (window.begin != begin) {
      window.ledger_bytes.reset();  // the counters' window is longer than the ledger's
    }
    window.source = counters_proven   ? Source::kGpm
                    : nvml != nullptr ? Source::kNone  // the first pair is not complete yet
                    : ledger > 0      ? Source::kLedger
                                      : Source::kNone;
    const bool first = !last_tick;
    last_tick = now;
    last_ledger = ledger;
    const std::lock_guard lock(mutex);
    source = window.source;
    if (!first) {
      ring[pushed % kWindows] = window;
      ++pushed;
    }
  }

  void run() {
    double due = monotonic_seconds();
    for (bool first = true;; first = false) {
      tick(monotonic_seconds());
      std::unique_lock lock(mutex);
      const auto period = [&] { return live ? options.live_period : options.period; };
      const double begun = due;
      for (;;) {
        due = begun + (first && wants_counters() ? kProbeSeconds : period());
        const double wait = due - monotonic_seconds();
        if (stopping) {
          return;
        }
        if (wait <= 0) {
          break;
        }
        wake.wait_for(lock, std::chrono::duration<double>(wait));
      }
      // After a pause of the process, go on from now instead of catching up.
      due = std::max(due, monotonic_seconds() - period());
    }
  }
};

BandwidthMeter::BandwidthMeter(MeterOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}

BandwidthMeter::~BandwidthMeter() {
  stop();
}

void BandwidthMeter::start() {
  if (state_->thread.joinable()) {
    return;
  }
  state_->stopping = false;
  // Signals belong to the threads that save and stop; the sampler takes none.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  state_->thread = std::thread([state = state_.get()] { state->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void BandwidthMeter::stop() {
  if (!state_->thread.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  state_->thread.join();
}

void BandwidthMeter::set_live(bool live) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->live = live;
  }
  state_->wake.notify_all();
}

void BandwidthMeter::set_achievable(double bytes_per_second) {
  const std::lock_guard lock(state_->mutex);
  state_->achievable = bytes_per_second;
}

void BandwidthMeter::tick(double now) {
  state_->tick(now);
}

Source BandwidthMeter::source() const {
  const std::lock_guard lock(state_->mutex);
  return state_->source;
}

std::string BandwidthMeter::reason() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reason;
}

std::optional<Bandwidth> BandwidthMeter::latest(double now) const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  std::optional<Bandwidth> found;
  s.for_each_window([&](const Window& w) {
    if (w.source != s.source) {
      return false;  // older windows belong to a source that is no longer in force
    }
    if (const auto rate = s.rate(w, w.source)) {
      found = s.describe(w.source, *rate, w.length());
      found->age_ms = (now - w.end) * 1e3;
    }
    return !found;
  });
  return found;
}

std::optional<Bandwidth> BandwidthMeter::over(double from, double to) const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  for (const Source source : {Source::kGpm, Source::kLedger}) {
    double seconds = 0;
    double bytes = 0;
    double end = from;
    s.for_each_inside(from, to, [&](const Window& w) {
      const auto rate = w.source == source ? s.rate(w, source) : std::nullopt;
      if (rate) {
        seconds += w.length();
        bytes += *rate * w.length();
        end = std::max(end, w.end);
      }
    });
    if (seconds >= kShortestInterval - kClockSlack) {
      Bandwidth b = s.describe(source, bytes / seconds, seconds);
      b.age_ms = (to - end) * 1e3;
      return b;
    }
  }
  return std::nullopt;
}

std::optional<double> BandwidthMeter::gpm_to_ledger(double from, double to) const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  double seconds = 0;
  double counted = 0;
  double modelled = 0;
  s.for_each_inside(from, to, [&](const Window& w) {
    const auto rate = s.rate(w, Source::kGpm);
    if (rate && w.ledger_bytes) {
      seconds += w.length();
      counted += *rate * w.length();
      modelled += *w.ledger_bytes;
    }
  });
  if (seconds < kShortestInterval - kClockSlack || modelled <= 0) {
    return std::nullopt;
  }
  return counted / modelled;
}

std::optional<ClockRange> BandwidthMeter::clock_over(double from, double to) const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  std::optional<ClockRange> range;
  s.for_each_window([&](const Window& w) {
    if (w.end >= from && w.end <= to && w.clock_mhz) {
      const ClockRange before = range.value_or(ClockRange{*w.clock_mhz, *w.clock_mhz});
      range = ClockRange{std::min(before.lowest_mhz, *w.clock_mhz),
                         std::max(before.highest_mhz, *w.clock_mhz)};
    }
    return w.end >= from;
  });
  return range;
}

DeviceReadings BandwidthMeter::readings() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  DeviceReadings readings = s.readings;
  if (s.throttle_known) {
    readings.throttle = throttle_text(s.throttle);
  }
  return readings;
}

}  // namespace penstock::measure
