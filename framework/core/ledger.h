// Bytes and FLOPs that our own ops must move and do, by op and by class of memory. Kernels write
// here, once per launch, on every device, meta included: plan, meter and profile read it.
#pragma once

#include <array>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "framework/core/memory.h"
#include "framework/core/trace.h"

namespace penstock {

class Tensor;

namespace ledger {

struct Totals {
  std::array<double, kMemoryClasses> read{};     // bytes, by class of the tensor read
  std::array<double, kMemoryClasses> written{};  // bytes
  double flops = 0;                              // a multiply-add counts two
  double kernels = 0;                            // launches (library calls count one)

  double bytes() const;
  Totals& operator+=(const Totals& other);
  Totals operator-(const Totals& before) const;
};

// Records one kernel: reads and writes count whole tensors. Empty tensors are skipped.
void kernel(std::initializer_list<const Tensor*> reads, std::initializer_list<const Tensor*> writes,
            double flops = 0);
// Records bytes of one class beside (gathers, partial reads); not counted as a launch.
void bytes(MemoryClass memory_class, double read, double written);

// Everything recorded by this process so far. Safe from any thread (the meter's).
Totals totals();
// Adds what a captured step was recorded to do, once per replay.
void add(const Totals& captured);

// One row of a per-op table.
struct Key {
  std::string op;
  trace::Phase phase;
  bool operator<(const Key& other) const {
    return op != other.op ? op < other.op : phase < other.phase;
  }
};
using Table = std::map<Key, Totals>;

// While one lives on the compute thread, what is recorded is kept apart by op and phase as well;
// `exclusive` ones keep it out of totals() (a plan is no traffic).
class Recorder {
 public:
  explicit Recorder(bool exclusive = false);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  const Table& table() const { return table_; }
  Totals sum() const;

 private:
  friend struct Sink;
  Table table_;
  bool exclusive_;
  Recorder* outer_;
};

}  // namespace ledger
}  // namespace penstock
