// What this machine's device can do: its ceilings, its capacity, its counters.
#pragma once

#include <memory>
#include <string>

#include "framework/measure/ceilings.h"
#include "framework/measure/meter.h"
#include "trainers/setup.h"

namespace penstock::trainers {

// Measured once per device and kept; takes about two seconds the first time.
measure::Ceilings device_ceilings(Device device, int threads);
// The roof of a precision on those ceilings.
double matmul_ceiling(const measure::Ceilings& ceilings, measure::Precision precision);

// Bytes that training may take: what is free now without a margin of max(3 %, 256 MiB), memory.limit
// considered; what this process's regions already hold counts as free.
i64 device_capacity(const Setup& setup);
// "NVIDIA H200" or the CPU's name.
std::string device_name(Device device);

// A meter for the device, not started.
std::unique_ptr<measure::BandwidthMeter> make_meter(Device device, const measure::Ceilings* ceilings);

}  // namespace penstock::trainers
