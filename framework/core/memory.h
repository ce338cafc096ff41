// One memory scheme for every device: a persistent region and a step region, each one reserved
// address range that grows without moving. On `meta` both are numbers only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "framework/core/check.h"
#include "framework/core/device.h"

namespace penstock {

enum class Region : std::uint8_t { kPersistent, kStep };

// What a block holds: the ledger and the plan account bytes by it.
enum class MemoryClass : std::uint8_t {
  kWeights,
  kGradients,
  kOptimizer,    // moments, master copies
  kBuffers,      // batch-norm statistics, step state
  kBatch,        // input slots
  kActivations,  // everything a step allocates unless it says otherwise
  kWorkspace,    // scratch of library calls
};
inline constexpr int kMemoryClasses = 7;
const char* name_of(MemoryClass c);

// A block of a region. Freed when the last owner goes.
struct Storage {
  void* data = nullptr;  // null on meta
  i64 bytes = 0;
  i64 offset = 0;
  const char* op = "";  // who allocated it, for messages
  Device device;
  Region region = Region::kPersistent;
  MemoryClass memory_class = MemoryClass::kActivations;

  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage();
};

namespace memory {

struct Stats {
  i64 used = 0;        // bytes in live blocks
  i64 high_water = 0;  // the furthest end of a block since the last reset
  i64 committed = 0;   // bytes backed by memory
};

// A block of `bytes` (not initialised) in the step region inside a StepScope of that device, in
// the persistent one otherwise. Throws OutOfMemory; nothing is changed then.
std::shared_ptr<Storage> allocate(Device device, i64 bytes,
                                  MemoryClass memory_class = MemoryClass::kActivations);

Stats stats(Device device, Region region);
// Bytes in live blocks of one class, both regions.
i64 used(Device device, MemoryClass memory_class);
void reset_high_water(Device device);
// At most this many bytes may be committed over both regions; default: what the device has.
void set_limit(Device device, i64 bytes);
i64 limit(Device device);
// Bytes the regions could still be given now: limit and free memory considered. Not for meta.
i64 available(Device device);
// Backs the region with at least `bytes` now, so that nothing grows later. Throws OutOfMemory.
void commit(Device device, Region region, i64 bytes);
// Returns memory behind the last live block to the system.
void trim(Device device);

// The op that made the lowest live block of the step region; empty when there is none.
std::string first_survivor(Device device);

// Number of successful growths of any region of the device; a steady state grows nothing.
i64 growths(Device device);

}  // namespace memory

// While one lives, allocations of this thread on `device` come from its step region. close() checks
// that nothing outlives the scope and throws an Error naming the op that made the survivor.
class StepScope {
 public:
  explicit StepScope(Device device);
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;
  void close();

 private:
  Device device_;
  bool open_ = true;
};

// While one lives inside a StepScope, allocations come from the persistent region again.
class PersistentScope {
 public:
  PersistentScope();
  ~PersistentScope();
  PersistentScope(const PersistentScope&) = delete;
  PersistentScope& operator=(const PersistentScope&) = delete;
};

}  // namespace penstock
