// Named ranges: which op, in which phase, this thread is working on. Allocation messages, the
// ledger, the per-op profile and NVTX all read the same name.
#pragma once

#include <cstdint>

#include "framework/core/device.h"

namespace penstock::trace {

enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer, kInput, kOther };
const char* name_of(Phase phase);

// Hears the begin and end of every range on the compute thread. Installed by the profiler.
class Listener {
 public:
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  virtual ~Listener() = default;
  virtual void begin(const char* name, Phase phase) = 0;
  virtual void end(const char* name, Phase phase) = 0;
};
// Null for none. Not owned. Call from the compute thread only.
void set_listener(Listener* listener);
Listener* listener();

// One op, forward or backward; `name` must live for the whole process. Nested ranges keep the
// outer op's name for the ledger and the profile: a block op is one row, however it is composed.
class Op {
 public:
  explicit Op(const char* name);
  Op(const char* name, Phase phase);
  ~Op();
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

 private:
  const char* outer_name_;
  Phase outer_phase_;
  bool outermost_;
};

// "" outside of any op.
const char* current_op();
Phase current_phase();

// When set, every op on CUDA ends with a synchronisation and an error names the op it came from.
void set_sync_each_op(bool on);
bool sync_each_op();

}  // namespace penstock::trace
