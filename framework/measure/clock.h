// Time as every measurement here takes it: seconds on the monotonic clock, never wall time.
#pragma once

#include <chrono>

namespace penstock::measure {

// Seconds on the monotonic clock; only differences mean anything.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace penstock::measure
