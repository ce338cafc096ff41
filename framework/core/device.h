// Where a tensor lives.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// kMeta holds shapes and addresses but no memory: running a step on it *is* the memory plan.
enum class DeviceType : std::uint8_t { kCpu, kCuda, kMeta };

// One process drives at most one GPU, so no index is needed.
struct Device {
  DeviceType type = DeviceType::kCpu;
  // For kMeta: the device whose allocation behaviour (workspaces, library choices) is planned.
  DeviceType models = DeviceType::kCpu;

  bool is_cpu() const { return type == DeviceType::kCpu; }
  bool is_cuda() const { return type == DeviceType::kCuda; }
  bool is_meta() const { return type == DeviceType::kMeta; }
  bool operator==(const Device&) const = default;
};

inline constexpr Device kCpu{DeviceType::kCpu, DeviceType::kCpu};
inline constexpr Device kCuda{DeviceType::kCuda, DeviceType::kCuda};
constexpr Device meta_of(Device real) {
  return {DeviceType::kMeta, real.models};
}

inline std::string to_string(Device device) {
  switch (device.type) {
    case DeviceType::kCpu: return "cpu";
    case DeviceType::kCuda: return "cuda";
    case DeviceType::kMeta: return device.models == DeviceType::kCuda ? "meta(cuda)" : "meta(cpu)";
  }
  return "?";
}

}  // namespace penstock
