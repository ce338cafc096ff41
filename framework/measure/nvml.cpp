#include "framework/measure/nvml.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <vector>

#include "framework/core/format.h"

namespace penstock::measure {
namespace {

// Layouts of the C interface (API 12 and 13 agree on them).
struct GpmSupport {
  std::uint32_t version = 1;
  std::uint32_t supported = 0;
};
struct GpmMetric {
  std::uint32_t id = 0;
  std::int32_t status = 0;
  double value = 0;
  std::array<char*, 3> names{};
};
static_assert(sizeof(GpmMetric) == 40);
// The newest header's length of the array. It is last, so a longer one than the library's is safe.
constexpr std::size_t kGpmMetrics = 333;
struct GpmMetricsGet {
  std::uint32_t version = 1;
  std::uint32_t count = 0;
  void* earlier = nullptr;
  void* later = nullptr;
  std::array<GpmMetric, kGpmMetrics> metrics{};
};
static_assert(offsetof(GpmMetricsGet, metrics) == 24);
struct UtilizationRates {
  std::uint32_t gpu = 0;
  std::uint32_t memory = 0;
};
struct ProcessInfo {
  std::uint32_t pid = 0;
  std::uint64_t used_memory = 0;
  std::uint32_t gpu_instance = 0;
  std::uint32_t compute_instance = 0;
};
static_assert(sizeof(ProcessInfo) == 24);

constexpr std::uint32_t kClockSm = 1;
constexpr int kInsufficientSize = 7;
constexpr double kMiB = 1024.0 * 1024.0;
// Metric ids in the order they are asked for.
enum Metric : std::size_t { kDram, kSm, kTensor, kPcieSent, kPcieReceived, kMetrics };
constexpr std::array<std::uint32_t, kMetrics> kMetricIds = {10, 2, 5, 20, 21};

}  // namespace

struct Nvml::Calls {
  template <class... Args>
  using Function = int (*)(Args...);

  Function<> init = nullptr;
  Function<> shutdown = nullptr;
  const char* (*error_string)(int) = nullptr;
  Function<const char*, void**> device_by_bus_id = nullptr;
  Function<void*, std::uint32_t*, std::uint32_t*> mig_mode = nullptr;
  Function<void*, UtilizationRates*> utilization = nullptr;
  Function<void*, std::uint32_t, std::uint32_t*> clock = nullptr;
  Function<void*, std::uint32_t, std::uint32_t*> max_clock = nullptr;
  Function<void*, std::uint64_t*> throttle = nullptr;
  Function<void*, std::uint32_t*, ProcessInfo*> processes = nullptr;
  Function<void*, GpmSupport*> gpm_support = nullptr;
  Function<void**> gpm_alloc = nullptr;
  Function<void*> gpm_free = nullptr;
  Function<void*, void*> gpm_sample = nullptr;
  Function<GpmMetricsGet*> gpm_metrics = nullptr;

  // The library stays loaded: it keeps threads and handlers of its own.
  explicit Calls(void* library) {
    const auto find = [&](auto& function, const char* name, const char* older = nullptr) {
      void* symbol = dlsym(library, name);
      if (symbol == nullptr && older != nullptr) {
        symbol = dlsym(library, older);
      }
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    find(mig_mode, "nvmlDeviceGetMigMode");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(clock, "nvmlDeviceGetClockInfo");
    find(max_clock, "nvmlDeviceGetMaxClockInfo");
    find(throttle, "nvmlDeviceGetCurrentClocksEventReasons",
         "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(processes, "nvmlDeviceGetComputeRunningProcesses_v3",
         "nvmlDeviceGetComputeRunningProcesses_v2");
    find(gpm_support, "nvmlGpmQueryDeviceSupport");
    find(gpm_alloc, "nvmlGpmSampleAlloc");
    find(gpm_free, "nvmlGpmSampleFree");
    find(gpm_sample, "nvmlGpmSampleGet");
    find(gpm_metrics, "nvmlGpmMetricsGet");
  }
};

struct Nvml::Request {
  GpmMetricsGet call;
};

Nvml::Nvml() = default;

Nvml::~Nvml() {
  for (void* sample : samples_) {
    if (sample != nullptr) {
      calls_->gpm_free(sample);
    }
  }
  if (initialised_) {
    calls_->shutdown();
  }
}

std::unique_ptr<Nvml> Nvml::open(const std::string& library, const std::string& pci_bus_id,
                                 std::string& why) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* text = dlerror();
    why = format("{} does not load ({})", library, text == nullptr ? "no reason given" : text);
    return nullptr;
  }
  std::unique_ptr<Nvml> nvml(new Nvml);
  nvml->calls_ = std::make_unique<Calls>(handle);
  const Calls& calls = *nvml->calls_;
  if (calls.init == nullptr || calls.shutdown == nullptr || calls.device_by_bus_id == nullptr) {
    why = format("{} lacks the basic NVML calls", library);
    return nullptr;
  }
  if (const int code = calls.init(); code != kNvmlSuccess) {
    why = "NVML does not start: " + nvml->error_text(code);
    return nullptr;
  }
  nvml->initialised_ = true;
  if (const int code = calls.device_by_bus_id(pci_bus_id.c_str(), &nvml->device_);
      code != kNvmlSuccess) {
    why = format("NVML finds no device at {}: {}", pci_bus_id, nvml->error_text(code));
    return nullptr;
  }
  std::uint32_t current = 0;
  std::uint32_t pending = 0;
  if (calls.mig_mode != nullptr &&
      calls.mig_mode(nvml->device_, &current, &pending) == kNvmlSuccess && current != 0) {
    why = "MIG is on, and the device's counters do not tell slices apart";
    return nullptr;
  }
  return nvml;
}

bool Nvml::open_gpm(std::string& why) {
  const Calls& calls = *calls_;
  if (calls.gpm_support == nullptr || calls.gpm_alloc == nullptr || calls.gpm_free == nullptr ||
      calls.gpm_sample == nullptr || calls.gpm_metrics == nullptr) {
    why = "this driver's NVML has no GPM calls (they came with driver 525)";
    return false;
  }
  GpmSupport support;
  if (const int code = calls.gpm_support(device_, &support); code != kNvmlSuccess) {
    why = "GPM support cannot be asked for: " + error_text(code);
    return false;
  }
  if (support.supported == 0) {
    why = "this GPU has no GPM counters (Hopper and newer have)";
    return false;
  }
  for (void*& sample : samples_) {
    if (const int code = calls.gpm_alloc(&sample); code != kNvmlSuccess) {
      sample = nullptr;
      why = "no GPM sample: " + error_text(code);
      return false;
    }
  }
  request_ = std::make_unique<Request>();
  if (const int code = take_sample(); code != kNvmlSuccess) {
    why = "GPM sample refused: " + error_text(code);
    if (code == kNvmlNoPermission) {
      why += "; root or CAP_SYS_ADMIN may read the counters";
    }
    return false;
  }
  return true;
}

int Nvml::take_sample() {
  const int code = calls_->gpm_sample(device_, samples_[0]);
  if (code == kNvmlSuccess) {
    std::swap(samples_[0], samples_[1]);
  }
  return code;
}

int Nvml::evaluate(GpmValues& values) {
  GpmMetricsGet& call = request_->call;
  call.version = 1;
  call.count = kMetrics;
  call.earlier = samples_[0];
  call.later = samples_[1];
  for (std::size_t i = 0; i < kMetrics; ++i) {
    call.metrics[i] = {.id = kMetricIds[i]};
  }
  if (const int code = calls_->gpm_metrics(&call); code != kNvmlSuccess) {
    return code;
  }
  const auto value = [&](Metric metric, double scale) -> std::optional<double> {
    const GpmMetric& m = call.metrics[metric];
    return m.status == kNvmlSuccess && std::isfinite(m.value) && m.value >= 0
               ? std::optional(m.value * scale)
               : std::nullopt;
  };
  const GpmMetric& dram = call.metrics[kDram];
  if (dram.status != kNvmlSuccess) {
    return dram.status;
  }
  const auto share = value(kDram, 0.01);
  if (!share || *share > 1.01) {
    return kNvmlNotSupported;  // a number that cannot be a share is no number
  }
  values.dram_share = *share;
  values.sm_share = value(kSm, 0.01);
  values.tensor_share = value(kTensor, 0.01);
  values.pcie_sent = value(kPcieSent, kMiB);
  values.pcie_received = value(kPcieReceived, kMiB);
  return kNvmlSuccess;
}

std::optional<Nvml::Utilization> Nvml::utilization() const {
  UtilizationRates rates;
  if (calls_->utilization == nullptr || calls_->utilization(device_, &rates) != kNvmlSuccess) {
    return std::nullopt;
  }
  return Utilization{rates.gpu * 0.01, rates.memory * 0.01};
}

std::optional<double> Nvml::sm_clock_mhz() const {
  std::uint32_t mhz = 0;
  if (calls_->clock == nullptr || calls_->clock(device_, kClockSm, &mhz) != kNvmlSuccess) {
    return std::nullopt;
  }
  return double(mhz);
}

std::optional<double> Nvml::max_sm_clock_mhz() const {
  std::uint32_t mhz = 0;
  if (calls_->max_clock == nullptr || calls_->max_clock(device_, kClockSm, &mhz) != kNvmlSuccess) {
    return std::nullopt;
  }
  return double(mhz);
}

std::optional<std::uint64_t> Nvml::throttle_reasons() const {
  std::uint64_t reasons = 0;
  if (calls_->throttle == nullptr || calls_->throttle(device_, &reasons) != kNvmlSuccess) {
    return std::nullopt;
  }
  return reasons;
}

std::optional<int> Nvml::other_processes() const {
  if (calls_->processes == nullptr) {
    return std::nullopt;
  }
  std::array<ProcessInfo, 256> infos{};
  auto count = std::uint32_t(infos.size());
  const int code = calls_->processes(device_, &count, infos.data());
  if (code == kInsufficientSize) {
    return int(count) - 1;  // more than fit; `count` says how many
  }
  if (code != kNvmlSuccess) {
    return std::nullopt;
  }
  // Inside a container the driver may list this process under another number, so it is counted out
  // rather than looked for.
  return count == 0 ? 0 : int(count) - 1;
}

std::string Nvml::error_text(int code) const {
  const char* text = calls_->error_string == nullptr ? nullptr : calls_->error_string(code);
  return format("{} (NVML error {})", text == nullptr ? "unknown" : text, code);
}

std::string throttle_text(std::uint64_t reasons) {
  static constexpr std::array<std::pair<std::uint64_t, const char*>, 7> kNames = {{
      {0x4, "power limit"},
      {0x8, "hardware slowdown"},
      {0x10, "clocks synchronised with other boards"},
      {0x20, "thermal limit"},
      {0x40, "hardware thermal slowdown"},
      {0x80, "power brake"},
      {0x100, "display clock"},
  }};
  std::string text;
  for (const auto& [bit, name] : kNames) {
    if ((reasons & bit) != 0) {
      text += text.empty() ? "" : ", ";
      text += name;
    }
  }
  return text;
}

}  // namespace penstock::measure
