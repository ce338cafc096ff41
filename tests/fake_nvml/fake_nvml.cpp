// A stand-in for libnvidia-ml.so.1 with the calls that the meter uses. Built twice: as it is, and
// with FAKE_NVML_WITHOUT_GPM for drivers from before GPM.
#include "fake_nvml.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kNoPermission = 4;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;
constexpr int kGpuIsLost = 15;
constexpr double kRefresh = 0.1;

struct Counters {
  double refreshed_at = 0;  // the last multiple of kRefresh
  double percent_seconds = 0;
};

FakeDevice g_device = {.sm_clock_mhz = 1980, .processes = 1};
double g_percent_seconds = 0;  // up to `now`
Counters g_visible;            // what a sample sees
std::string g_mode;

bool mode(const char* name) {
  return g_mode == name;
}
bool lost() {
  return mode("vanishes") && g_device.lost;
}

struct GpmMetric {
  std::uint32_t id;
  std::int32_t status;
  double value;
  char* names[3];
};
struct GpmMetricsGet {
  std::uint32_t version;
  std::uint32_t count;
  void* earlier;
  void* later;
  GpmMetric metrics[1];
};
struct ProcessInfo {
  std::uint32_t pid;
  std::uint64_t used;
  std::uint32_t gpu_instance, compute_instance;
};

}  // namespace

extern "C" {

FakeDevice* fake_nvml_device() {
  return &g_device;
}

void fake_nvml_advance(double seconds) {
  const double end = g_device.now + seconds;
  for (double next = (std::floor(g_device.now / kRefresh + 1e-9) + 1) * kRefresh;
       next <= end + 1e-9; next += kRefresh) {
    g_percent_seconds += (next - g_device.now) * g_device.dram_percent;
    g_device.now = next;
    g_visible = {next, g_percent_seconds};
  }
  g_percent_seconds += (end - g_device.now) * g_device.dram_percent;
  g_device.now = end;
}

int nvmlInit_v2() {
  const char* value = std::getenv("FAKE_NVML");
  g_mode = value == nullptr ? "" : value;
  if (lost()) {
    return kGpuIsLost;
  }
  ++g_device.started;
  return kSuccess;
}
int nvmlShutdown() {
  --g_device.started;
  return kSuccess;
}
const char* nvmlErrorString(int code) {
  switch (code) {
    case kNoPermission: return "Insufficient Permissions";
    case kGpuIsLost: return "GPU is lost";
    case kNotFound: return "Not Found";
    default: return "Unknown Error";
  }
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &g_device;
  return std::strcmp(bus_id, "0000:1b:00.0") == 0 ? kSuccess : kNotFound;
}
int nvmlDeviceGetMigMode(void*, std::uint32_t* current, std::uint32_t* pending) {
  *current = *pending = mode("mig") ? 1 : 0;
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void*, std::uint32_t* rates) {
  rates[0] = 100;  // any kernel at all
  rates[1] = 40;
  return lost() ? kGpuIsLost : kSuccess;
}
int nvmlDeviceGetClockInfo(void*, std::uint32_t type, std::uint32_t* mhz) {
  *mhz = g_device.sm_clock_mhz;
  return type == 1 ? kSuccess : kInvalidArgument;
}
int nvmlDeviceGetMaxClockInfo(void*, std::uint32_t, std::uint32_t* mhz) {
  *mhz = 1980;
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, std::uint64_t* reasons) {
  *reasons = g_device.throttle;
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, std::uint32_t* count, ProcessInfo* infos) {
  const std::uint32_t room = *count;
  *count = g_device.processes;
  if (room < g_device.processes) {
    return kInsufficientSize;
  }
  for (std::uint32_t i = 0; i < g_device.processes; ++i) {
    infos[i] = {.pid = 1000 + i};
  }
  return kSuccess;
}

#ifndef FAKE_NVML_WITHOUT_GPM
int nvmlGpmQueryDeviceSupport(void*, std::uint32_t* support) {
  support[1] = mode("unsupported") ? 0 : 1;
  return support[0] == 1 ? kSuccess : kInvalidArgument;
}
int nvmlGpmSampleAlloc(void** sample) {
  *sample = new Counters;
  ++g_device.samples_alive;
  return kSuccess;
}
int nvmlGpmSampleFree(void* sample) {
  delete static_cast<Counters*>(sample);
  --g_device.samples_alive;
  return kSuccess;
}
int nvmlGpmSampleGet(void*, void* sample) {
  ++g_device.gpm_reads;
  if (lost()) {
    return kGpuIsLost;
  }
  if (mode("refuses")) {
    return kNoPermission;
  }
  *static_cast<Counters*>(sample) = g_visible;
  return kSuccess;
}
int nvmlGpmMetricsGet(GpmMetricsGet* get) {
  if (get->version != 1 || get->count > 333) {
    return kInvalidArgument;
  }
  const auto& earlier = *static_cast<const Counters*>(get->earlier);
  const auto& later = *static_cast<const Counters*>(get->later);
  const double seconds = later.refreshed_at - earlier.refreshed_at;
  for (std::uint32_t i = 0; i < get->count; ++i) {
    GpmMetric& m = get->metrics[i];
    m.status = kSuccess;
    switch (m.id) {
      case 10:
        // Inside one refresh the real counters give 0 as well, without an error.
        m.value = seconds > 0 ? (later.percent_seconds - earlier.percent_seconds) / seconds : 0;
        m.status = mode("metric") ? kNoPermission : kSuccess;
        break;
      case 2: m.value = 97; break;
      case 20: m.value = 100; break;
      case 21: m.value = 1000; break;
      default: m.status = kNotSupported;
    }
  }
  return kSuccess;
}
#endif
}
