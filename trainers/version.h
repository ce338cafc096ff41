// The version that runs, checkpoints and messages carry; CMake sets it.
#pragma once

namespace penstock::trainers {

inline constexpr const char* kVersion = PENSTOCK_VERSION;

}  // namespace penstock::trainers
