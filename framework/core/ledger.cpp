#include "framework/core/ledger.h"

#include <atomic>

#include "framework/core/tensor.h"

namespace penstock::ledger {
namespace {

thread_local Recorder* t_recorder = nullptr;

struct Global {
  std::array<std::atomic<double>, kMemoryClasses> read{};
  std::array<std::atomic<double>, kMemoryClasses> written{};
  std::atomic<double> flops{0};
  std::atomic<double> kernels{0};
} g_totals;

void raise(std::atomic<double>& sum, double by) {
  if (by != 0) {
    sum.fetch_add(by, std::memory_order_relaxed);
  }
}

}  // namespace

struct Sink {
  // Rows of every live recorder, then the process totals unless one of them is exclusive.
  static void record(const Totals& t) {
    bool counted = true;
    for (Recorder* r = t_recorder; r != nullptr; r = r->outer_) {
      r->table_[{trace::current_op(), trace::current_phase()}] += t;
      counted = counted && !r->exclusive_;
    }
    if (counted) {
      add(t);
    }
  }
};

double Totals::bytes() const {
  double sum = 0;
  for (int c = 0; c < kMemoryClasses; ++c) {
    sum += read[std::size_t(c)] + written[std::size_t(c)];
  }
  return sum;
}

Totals& Totals::operator+=(const Totals& other) {
  for (std::size_t c = 0; c < std::size_t(kMemoryClasses); ++c) {
    read[c] += other.read[c];
    written[c] += other.written[c];
  }
  flops += other.flops;
  kernels += other.kernels;
  return *this;
}

Totals Totals::operator-(const Totals& before) const {
  Totals out = *this;
  for (std::size_t c = 0; c < std::size_t(kMemoryClasses); ++c) {
    out.read[c] -= before.read[c];
    out.written[c] -= before.written[c];
  }
  out.flops -= before.flops;
  out.kernels -= before.kernels;
  return out;
}

void kernel(std::initializer_list<const Tensor*> reads, std::initializer_list<const Tensor*> writes,
            double flops) {
  Totals t;
  for (const Tensor* x : reads) {
    if (x != nullptr && x->defined()) {
      t.read[std::size_t(x->memory_class())] += double(x->bytes());
    }
  }
  for (const Tensor* y : writes) {
    if (y != nullptr && y->defined()) {
      t.written[std::size_t(y->memory_class())] += double(y->bytes());
    }
  }
  t.flops = flops;
  t.kernels = 1;
  Sink::record(t);
}

void bytes(MemoryClass memory_class, double read, double written) {
  Totals t;
  t.read[std::size_t(memory_class)] = read;
  t.written[std::size_t(memory_class)] = written;
  Sink::record(t);
}

Totals totals() {
  Totals t;
  for (std::size_t c = 0; c < std::size_t(kMemoryClasses); ++c) {
    t.read[c] = g_totals.read[c].load(std::memory_order_relaxed);
    t.written[c] = g_totals.written[c].load(std::memory_order_relaxed);
  }
  t.flops = g_totals.flops.load(std::memory_order_relaxed);
  t.kernels = g_totals.kernels.load(std::memory_order_relaxed);
  return t;
}

void add(const Totals& captured) {
  for (std::size_t c = 0; c < std::size_t(kMemoryClasses); ++c) {
    raise(g_totals.read[c], captured.read[c]);
    raise(g_totals.written[c], captured.written[c]);
  }
  raise(g_totals.flops, captured.flops);
  raise(g_totals.kernels, captured.kernels);
}

Recorder::Recorder(bool exclusive) : exclusive_(exclusive), outer_(t_recorder) {
  t_recorder = this;
}
Recorder::~Recorder() {
  t_recorder = outer_;
}

Totals Recorder::sum() const {
  Totals t;
  for (const auto& [key, row] : table_) {
    t += row;
  }
  return t;
}

}  // namespace penstock::ledger
