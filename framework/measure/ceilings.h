// What this device can really do, measured once and kept: bytes a second of a triad over buffers
// that no cache holds, FLOP/s of a large matrix product in each precision.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/target.h"

namespace penstock::measure {

// The arithmetic a matrix product runs in.
enum class Precision : std::uint8_t { kF32, kTf32, kF16, kBf16 };
inline constexpr std::size_t kPrecisions = 4;
const char* name_of(Precision precision);  // "f32", "tf32", "f16", "bf16"
std::optional<Precision> precision_named(const std::string& name);

// Achievable rates. A multiply-add counts two FLOPs; reads and writes both count as bytes.
struct Ceilings {
  double bytes_per_second = 0;
  std::array<std::optional<double>, kPrecisions> flops{};  // a second, by Precision
  std::string source;                                      // "measured", "assumed from a datasheet"
  std::string date;                                        // of the measurement, "2026-12-01"

  std::optional<double> flops_of(Precision precision) const {
    return flops[std::size_t(precision)];
  }
};

// How one device measures itself; the CUDA side passes its own triad and matrix products.
struct CeilingProbe {
  std::function<double()> triad;  // bytes a second
  // FLOP/s of a product large enough to be compute-bound, on random data; none where the device
  // has no such arithmetic. May be empty: then there are no FLOP ceilings.
  std::function<std::optional<double>(Precision)> matmul;
};

// Bytes a second of a[i] = b[i] + s c[i] on `threads` compute threads, each array at least four
// times the last-level caches of the granted cores: best of several passes, about half a second.
// Arrays shrink towards a third of that where memory is short; Error when even those do not fit.
// Changes the number of compute threads while it runs: call it before training starts.
double cpu_triad(int threads);
// Bytes of the last-level caches that the granted cores reach, each cache counted once.
i64 last_level_cache();

// Identifies what a measurement holds for. CPU: model, threads, instruction set, caches.
std::string cpu_key(int threads);
// A CUDA device: its unique id, peak bandwidth and driver; cuda::available() must hold.
std::string cuda_key();

// The kept ceilings of `key`, or those of `probe`, which are then kept. `folder`: where files lie;
// empty for $XDG_CACHE_HOME/penstock or ~/.cache/penstock. A cache that cannot be read or written
// costs a measurement, never a run.
Ceilings ceilings(const std::string& key, const CeilingProbe& probe,
                  const std::string& folder = "");

// Public datasheet figures of one device: peaks, not what is achievable.
struct DeviceSheet {
  const char* name;
  double bytes_per_second;
  double memory_bytes;
  int multiprocessors;
  // Dense FLOP/s with 32-bit accumulation by Precision; 0 where the device has none.
  std::array<double, kPrecisions> flops;
  const char* source;
};
const std::vector<DeviceSheet>& device_sheets();
// The sheet that `name` means: "h200", "NVIDIA H200", "A100-SXM4-80GB", "rtx 4090". None when
// nothing fits or two fit equally well.
const DeviceSheet* find_device_sheet(const std::string& name);
// What such a device is assumed to achieve: shares of its datasheet that measured devices reach.
Ceilings assumed_ceilings(const DeviceSheet& sheet);

}  // namespace penstock::measure
