// How much of the memory bandwidth is used, now and over an interval. The number comes from the
// device's own counters (NVML GPM) where they can be read, otherwise from the ledger of our own ops
// over elapsed time, otherwise there is none: a value that was not measured is absent, never 0.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace penstock::measure {

enum class Source : std::uint8_t {
  kNone,
  kGpm,     // counters: all traffic of the whole device, other processes included
  kLedger,  // modelled: the bytes that this process's own ops must move
};
const char* name_of(Source source);  // "none", "gpm", "ledger"

struct Bandwidth {
  double bytes_per_second = 0;
  std::optional<double> share_of_theoretical;  // of memory clock x bus width
  std::optional<double> share_of_achievable;   // of the measured triad: 1 means nothing is left
  Source source = Source::kNone;
  double window_ms = 0;  // how long the value was averaged over
  double age_ms = 0;     // since the window ended
};

// What else the driver tells. GPU-Util stands here to be shown beside DRAM: it is a share of time.
struct DeviceReadings {
  std::optional<double> gpu_util;       // share of time with a kernel running
  std::optional<double> memory_util;    // share of time with memory touched; not bandwidth
  std::optional<double> sm_share;       // share of SM time with a warp resident
  std::optional<double> tensor_share;   // share of the tensor pipes' time
  std::optional<double> pcie_sent;      // bytes a second
  std::optional<double> pcie_received;  // bytes a second
  std::optional<double> sm_clock_mhz;
  std::optional<double> max_sm_clock_mhz;
  std::optional<std::string> throttle;  // what holds the clock down; "" for nothing
  std::optional<int> other_processes;
};

struct ClockRange {
  double lowest_mhz = 0;
  double highest_mhz = 0;
};

struct MeterOptions {
  std::string pci_bus_id;             // empty: no GPU, so the ledger is the source
  std::optional<double> theoretical;  // bytes a second, from the device's attributes
  std::optional<double> achievable;   // bytes a second, measured (Ceilings)
  std::string nvml_library = "libnvidia-ml.so.1";
  double period = 1.0;       // seconds between samples
  double live_period = 0.2;  // while a probe or the tuner is live
  double retry = 60;         // seconds between attempts to get lost counters back
};

// GPM pairs at most this far apart have no value: the counters refresh every 100 ms, and a pair
// inside one refresh looks exactly like an idle device.
inline constexpr double kShortestWindow = 0.1;  // seconds
// over() needs windows of at least this much altogether.
inline constexpr double kShortestInterval = 0.3;  // seconds

// Samples on a thread of its own, which neither allocates nor calls CUDA. All other functions are
// safe from any thread. Times are monotonic_seconds().
class BandwidthMeter {
 public:
  explicit BandwidthMeter(MeterOptions options);
  ~BandwidthMeter();  // stops
  BandwidthMeter(const BandwidthMeter&) = delete;
  BandwidthMeter& operator=(const BandwidthMeter&) = delete;

  // Starts the sampler; NVML is opened there, because it may take half a second.
  void start();
  void stop();
  // Shortens the period while a probe or the tuner needs values of short intervals.
  void set_live(bool live);
  // The measured ceiling, once there is one.
  void set_achievable(double bytes_per_second);

  // One sample, taken by the caller at time `now`: what the thread does. Never beside start().
  void tick(double now);

  Source source() const;
  // Why the counters are not the source; empty while they are, or where there is no GPU.
  std::string reason() const;
  // The newest window.
  std::optional<Bandwidth> latest(double now) const;
  // The mean over the windows that lie wholly inside [from, to]; none when they hold less than
  // kShortestInterval. Windows of different sources are never mixed.
  std::optional<Bandwidth> over(double from, double to) const;
  // Counted bytes over modelled bytes in the same windows; none without both.
  std::optional<double> gpm_to_ledger(double from, double to) const;
  // The SM clock at the samples inside [from, to].
  std::optional<ClockRange> clock_over(double from, double to) const;
  DeviceReadings readings() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::measure
