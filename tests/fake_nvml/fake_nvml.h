// How a test drives the fake management library: a device on a virtual clock whose counters refresh
// every 100 ms, as the real ones do. FAKE_NVML in the environment chooses how it behaves, read when
// NVML is initialised:
//   (unset)        works
//   refuses        counters answer "no permission"
//   metric         only the DRAM metric answers "no permission"
//   unsupported    a chip without GPM
//   mig            MIG is on
//   vanishes       calls answer "GPU is lost" while `lost` is set
#pragma once

#include <cstdint>

extern "C" {

struct FakeDevice {
  double now;           // seconds; the test moves it
  double dram_percent;  // traffic from `now` on
  bool lost;
  std::uint32_t sm_clock_mhz;
  std::uint64_t throttle;
  std::uint32_t processes;
  int samples_alive;  // GPM samples not freed
  int started;        // nvmlInit minus nvmlShutdown
  int gpm_reads;
};

// The one device, at 0000:1b:00.0. Found by dlsym, so that both copies of the library have their
// own.
FakeDevice* fake_nvml_device();
// Moves the clock on under the traffic set so far.
void fake_nvml_advance(double seconds);
}
