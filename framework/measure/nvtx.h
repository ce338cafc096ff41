// Named ranges for NVIDIA's profilers. Without one attached a range costs a few nanoseconds.
#pragma once

#include <memory>

#include "framework/core/trace.h"

namespace penstock::measure {

// Was NVTX found when this was built?
bool nvtx_built();

// Marks every op as a range named after it, inside one for its phase. Installs itself on this
// thread, goes on telling the listener that was there, and removes itself when destroyed. Null when
// nvtx_built() is false.
std::unique_ptr<trace::Listener> nvtx_listener();

}  // namespace penstock::measure
