#include "framework/core/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "framework/core/cuda.h"
#include "framework/core/machine.h"
#include "framework/core/offset_allocator.h"
#include "framework/core/trace.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace penstock {
namespace {

thread_local int t_step_depth = 0;
thread_local Device t_step_device;
thread_local int t_persistent_depth = 0;

constexpr i64 round_up(i64 value, i64 multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Address space and pages of one region. commit(end) backs [0, end) and returns what is backed.
class Backing {
 public:
  Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  virtual ~Backing() = default;
  virtual void* base() = 0;
  // True on success; on failure nothing has changed and `why` says what the system answered.
  virtual bool grow(i64 from, i64 to, std::string& why) = 0;
  virtual void shrink(i64 from, i64 to) = 0;
  virtual i64 chunk() const = 0;
  virtual i64 available() const = 0;
};

class CpuBacking : public Backing {
 public:
  CpuBacking() {
    // Twice the machine's memory is never reached; a smaller address-space limit is respected.
    i64 size = round_up(std::max<i64>(machine::total_memory() * 2, i64(1) << 34), kHuge);
    while (size >= (i64(1) << 30)) {
      void* p = mmap(nullptr, std::size_t(size + kHuge), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p != MAP_FAILED) {
        base_ = reinterpret_cast<char*>(round_up(i64(reinterpret_cast<std::intptr_t>(p)), kHuge));
        reserved_ = size;
        return;
      }
      size /= 2;
    }
    throw OutOfMemory("memory: no address space could be reserved (is `ulimit -v` set?)", {});
  }
  void* base() override { return base_; }
  bool grow(i64 from, i64 to, std::string& why) override {
    if (to > reserved_) {
      why = format("only {} of address space could be reserved", bytes_text(double(reserved_)));
      return false;
    }
    if (to - from > machine::available_memory()) {
      why = format("the system has {} left for this process",
                   bytes_text(double(machine::available_memory())));
      return false;
    }
    char* start = base_ + from;
    const auto bytes = std::size_t(to - from);
    if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) {
      why = std::strerror(errno);
      return false;
    }
    madvise(start, bytes, MADV_HUGEPAGE);
    // Touch now: a failure here is an error, a failure at first use would be a signal.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
    if (madvise(start, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
      why = std::strerror(errno);
      shrink(from, to);
      return false;
    }
    ASAN_POISON_MEMORY_REGION(start, bytes);
    return true;
  }
  void shrink(i64 from, i64 to) override {
    ASAN_UNPOISON_MEMORY_REGION(base_ + from, std::size_t(to - from));
    madvise(base_ + from, std::size_t(to - from), MADV_DONTNEED);
    mprotect(base_ + from, std::size_t(to - from), PROT_NONE);
  }
  i64 chunk() const override {
    return kHuge;
  }
  i64 available() const override {
    return machine::available_memory();
  }

 private:
  static constexpr i64 kHuge = i64(2) << 20;
  char* base_ = nullptr;
  i64 reserved_ = 0;
};

class CudaBacking : public Backing {
 public:
  CudaBacking() : range_(cuda::reserve_range()) {}
  void* base() override { return range_->base(); }
  bool grow(i64 from, i64 to, std::string& why) override { return range_->grow(from, to, why); }
  void shrink(i64 from, i64 to) override { range_->shrink(from, to); }
  // Mapping 2 MiB at a time costs 26 ms per GiB on an H200, 64 MiB at a time 0.9 ms.
  i64 chunk() const override { return i64(64) << 20; }
  i64 available() const override { return cuda::free_memory(); }

 private:
  std::unique_ptr<cuda::Range> range_;
};

struct RegionState {
  OffsetAllocator offsets;
  std::unique_ptr<Backing> backing;  // created on first use, never on meta
  i64 committed = 0;
};

// The two regions of one device.
struct Manager {
  std::mutex mutex;
  Device device;
  std::array<RegionState, 2> regions;
  std::array<i64, kMemoryClasses> used_by_class{};
  std::map<i64, const char*> step_blocks;  // offset -> op of live step blocks: names a survivor
  i64 limit = std::numeric_limits<i64>::max();
  i64 growths = 0;

  RegionState& at(Region r) { return regions[std::size_t(r)]; }

  Backing& backing(RegionState& region) {
    if (!region.backing) {
      if (device.is_cuda()) {
        region.backing = std::make_unique<CudaBacking>();
      } else {
        region.backing = std::make_unique<CpuBacking>();
      }
    }
    return *region.backing;
  }

  // Backs [0, end) of the region, or throws and changes nothing.
  void ensure(Region which, i64 end, i64 requested) {
    RegionState& region = at(which);
    if (end <= region.committed) {
      return;
    }
    if (device.is_meta()) {
      region.committed = end;
      return;
    }
    Backing& pages = backing(region);
    const i64 target = round_up(end, pages.chunk());
    const i64 other = at(which == Region::kStep ? Region::kPersistent : Region::kStep).committed;
    std::string why;
    bool ok = false;
    i64 room = 0;
    if (target + other > limit) {
      room = std::max<i64>(0, limit - other - region.committed);
      why = format("the limit is {}", bytes_text(double(limit)));
    } else {
      ok = pages.grow(region.committed, target, why);
      if (!ok) {
        room = pages.available();
      }
    }
    if (!ok) {
      throw OutOfMemory(
          format(
              "{}: out of memory on {} allocating {}: {} in use, {} committed, {} available ({})",
              trace::current_op(), device, bytes_text(double(requested)),
              bytes_text(double(region.offsets.used())),
              bytes_text(double(region.committed + other)), bytes_text(double(room)), why),
          {.requested = requested,
           .used = region.offsets.used(),
           .committed = region.committed + other,
           .available = room});
    }
    region.committed = target;
    ++growths;
  }
};

Manager& manager(Device device) {
  // Leaked on purpose: tensors with static lifetime may be freed after any destructor of ours.
  static auto* cpu = new Manager;
  static auto* gpu = new Manager;
  static auto* meta_cpu = new Manager;
  static auto* meta_gpu = new Manager;
  Manager* m = device.is_cpu()                      ? cpu
               : device.is_cuda()                   ? gpu
               : device.models == DeviceType::kCuda ? meta_gpu
                                                    : meta_cpu;
  m->device = device;
  return *m;
}

}  // namespace

const char* name_of(MemoryClass c) {
  switch (c) {
    case MemoryClass::kWeights: return "weights";
    case MemoryClass::kGradients: return "gradients";
    case MemoryClass::kOptimizer: return "optimizer";
    case MemoryClass::kBuffers: return "buffers";
    case MemoryClass::kBatch: return "batch";
    case MemoryClass::kActivations: return "activations";
    case MemoryClass::kWorkspace: return "workspace";
  }
  return "?";
}

Storage::~Storage() {
  if (bytes == 0) {
    return;
  }
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  m.at(region).offsets.release(offset, bytes);
  if (region == Region::kStep) {
    m.step_blocks.erase(offset);
  }
  m.used_by_class[std::size_t(memory_class)] -= OffsetAllocator::aligned(bytes);
  if (device.is_cpu()) {
    ASAN_POISON_MEMORY_REGION(data, std::size_t(OffsetAllocator::aligned(bytes)));
  }
}

namespace memory {

std::shared_ptr<Storage> allocate(Device device, i64 bytes, MemoryClass memory_class) {
  auto block = std::make_shared<Storage>();
  const bool in_step = t_step_depth > 0 && t_persistent_depth == 0 && t_step_device == device;
  block->device = device;
  block->region = in_step ? Region::kStep : Region::kPersistent;
  block->memory_class = memory_class;
  block->op = trace::current_op();
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  RegionState& region = m.at(block->region);
  m.ensure(block->region, region.offsets.end_after(bytes), bytes);
  block->offset = region.offsets.allocate(bytes);
  block->bytes = bytes;  // set last: the destructor of a failed block gives nothing back
  if (in_step && bytes > 0) {
    m.step_blocks.emplace(block->offset, block->op);
  }
  m.used_by_class[std::size_t(memory_class)] += OffsetAllocator::aligned(bytes);
  if (!device.is_meta() && bytes > 0) {
    block->data = static_cast<char*>(m.backing(region).base()) + block->offset;
    if (device.is_cpu()) {
      ASAN_UNPOISON_MEMORY_REGION(block->data, std::size_t(bytes));
    }
  }
  return block;
}

Stats stats(Device device, Region region) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  const RegionState& r = m.at(region);
  return {r.offsets.used(), r.offsets.high_water(), r.committed};
}

i64 used(Device device, MemoryClass memory_class) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  return m.used_by_class[std::size_t(memory_class)];
}

void reset_high_water(Device device) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  for (RegionState& r : m.regions) {
    r.offsets.reset_high_water();
  }
}

void set_limit(Device device, i64 bytes) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  m.limit = bytes;
}

i64 limit(Device device) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  return m.limit;
}

i64 available(Device device) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  const i64 committed = m.regions[0].committed + m.regions[1].committed;
  const i64 system = device.is_cuda() ? cuda::free_memory() : machine::available_memory();
  return std::max<i64>(0, std::min(m.limit - committed, system));
}

void commit(Device device, Region region, i64 bytes) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  m.ensure(region, bytes, bytes);
}

void trim(Device device) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  for (RegionState& r : m.regions) {
    const i64 chunk = device.is_meta() ? OffsetAllocator::kAlignment
                      : r.backing      ? r.backing->chunk()
                                       : 1;
    const i64 keep = round_up(r.offsets.top(), chunk);
    if (keep < r.committed) {
      if (r.backing) {
        r.backing->shrink(keep, r.committed);
      }
      r.committed = keep;
    }
  }
}

std::string first_survivor(Device device) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  return m.step_blocks.empty() ? "" : m.step_blocks.begin()->second;
}

i64 growths(Device device) {
  Manager& m = manager(device);
  const std::lock_guard lock(m.mutex);
  return m.growths;
}

}  // namespace memory

StepScope::StepScope(Device device) : device_(device) {
  check(t_step_depth == 0, "step scope: one is already open on {}", t_step_device);
  const memory::Stats before = memory::stats(device, Region::kStep);
  check(before.used == 0, "step scope: {} of an earlier step are still alive on {}",
        bytes_text(double(before.used)), device);
  t_step_depth = 1;
  t_step_device = device;
}

StepScope::~StepScope() {
  if (open_) {
    t_step_depth = 0;
  }
}

void StepScope::close() {
  open_ = false;
  t_step_depth = 0;
  const memory::Stats after = memory::stats(device_, Region::kStep);
  if (after.used != 0) {
    fail(
        format("step scope: {} outlive the step; the first was made by '{}': copy what must stay "
               "with keep()",
               bytes_text(double(after.used)), memory::first_survivor(device_)));
  }
}

PersistentScope::PersistentScope() {
  ++t_persistent_depth;
}
PersistentScope::~PersistentScope() {
  --t_persistent_depth;
}

}  // namespace penstock
