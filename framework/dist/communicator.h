// What the ranks of a run say to each other. One rank: everything is the identity.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "framework/core/tensor.h"

namespace penstock::dist {

enum class Reduce { kSum, kMin, kMax };

class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Reduces `x` (f32 or f64, in place, same shape on every rank) over all ranks. Ordered with the
  // compute stream on CUDA. Throws Error naming the rank that failed or left.
  virtual void all_reduce(const Tensor& x, Reduce op = Reduce::kSum) = 0;
  virtual void broadcast(const Tensor& x, int root = 0) = 0;
  virtual void barrier() = 0;
  // Host values agreed on by every rank: capacities, stop flags, tuner decisions.
  virtual void all_reduce_host(std::span<double> values, Reduce op) = 0;
};

// The communicator of a run with one rank.
std::unique_ptr<Communicator> make_local();

}  // namespace penstock::dist
