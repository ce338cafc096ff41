// NVIDIA's management library by dlopen, with layouts of our own: no header of theirs is needed to
// build, no driver to start. One device, found by its PCI bus id; a number that the driver does not
// give is absent, never 0.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace penstock::measure {

// Return codes that decide what happens next; the rest are only printed.
inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlNotSupported = 3;
inline constexpr int kNvmlNoPermission = 4;

// Hardware counters of one window of at least 100 ms, whole device.
struct GpmValues {
  double dram_share = 0;                // of the theoretical DRAM bandwidth, 0..1
  std::optional<double> sm_share;       // of the SMs' time with a warp resident
  std::optional<double> tensor_share;   // of the tensor pipes' time
  std::optional<double> pcie_sent;      // bytes a second, device to host
  std::optional<double> pcie_received;  // bytes a second, host to device
};

class Nvml {
 public:
  // Loads `library` and finds the device; null with `why` when either fails. Devices cut up by MIG
  // are refused: their counters belong to the slices.
  static std::unique_ptr<Nvml> open(const std::string& library, const std::string& pci_bus_id,
                                    std::string& why);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Prepares the two counter samples; false with `why` (symbols missing, chip or permission).
  bool open_gpm(std::string& why);
  // Reads the counters into the older of the two samples, which becomes the newer. An NVML code.
  int take_sample();
  // The values between the two samples. An NVML code: the call's or the DRAM metric's own.
  int evaluate(GpmValues& values);

  struct Utilization {
    double gpu = 0;     // share of *time* in which a kernel ran: not how hard it worked
    double memory = 0;  // share of *time* in which memory was touched: not bandwidth
  };
  std::optional<Utilization> utilization() const;
  std::optional<double> sm_clock_mhz() const;
  std::optional<double> max_sm_clock_mhz() const;
  std::optional<std::uint64_t> throttle_reasons() const;
  // Processes with a compute context on the device other than this one, which is taken to have one.
  std::optional<int> other_processes() const;

  // "no permission (NVML error 4)".
  std::string error_text(int code) const;

 private:
  struct Calls;  // the functions found in the library
  struct Request;
  Nvml();

  std::unique_ptr<Calls> calls_;
  std::unique_ptr<Request> request_;
  void* device_ = nullptr;
  std::array<void*, 2> samples_{};  // older, newer
  bool initialised_ = false;
};

// "power limit, thermal slowdown", or "" when nothing but idleness or a set clock holds it down.
std::string throttle_text(std::uint64_t reasons);

}  // namespace penstock::measure
