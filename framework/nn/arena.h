// Flat memory for a model: master weights, gradients, low-precision copies and optimizer moments,
// each one array in the same order. The optimizer, the norm, all-reduce and checkpoints see arrays,
// modules see views.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/nn/module.h"

namespace penstock::nn {

struct ArenaOptions {
  Device device;
  DType dtype = DType::f32;    // of masters and gradients; f64 for reference runs on the CPU
  DType compute = DType::f32;  // f16 or bf16: low-precision copies are kept
  int moments = 0;             // arrays of optimizer state
  std::uint64_t seed = 0;      // of the initial values
  bool gradients = true;       // false: evaluation only
};

class ParameterArena {
 public:
  // Elements that every parameter is padded to: 128 bytes in 16 bits.
  static constexpr i64 kPad = 64;

  // Allocates everything, initialises, and points the module's parameters and buffers at it.
  ParameterArena(Module& module, const ArenaOptions& options);
  ParameterArena(const ParameterArena&) = delete;
  ParameterArena& operator=(const ParameterArena&) = delete;

  struct Entry {
    std::string name;
    Parameter* parameter = nullptr;
    i64 offset = 0;  // elements into each array
  };
  // In arena order: parameters with weight decay first.
  const std::vector<Entry>& entries() const { return entries_; }
  // Elements before this offset are subject to weight decay.
  i64 decay_end() const { return decay_end_; }
  i64 size() const { return size_; }
  Device device() const { return options_.device; }

  const Tensor& masters() const { return masters_; }          // [size]
  const Tensor& gradients() const { return gradients_; }      // [size]
  const Tensor& low_precision() const { return low_; }        // [size], undefined in f32
  const std::vector<Tensor>& moments() const { return moments_; }
  const Tensor& buffers() const { return buffers_; }          // [n] values, undefined when none
  const Tensor& buffer_shadows() const { return shadows_; }   // [n]

  // Before the first micro-batch of a step: no sink holds anything.
  void begin_step();
  // After the last: gradients of parameters that nothing reached become zero.
  void finish_gradients();
  // After values were written from outside (load, restore): low-precision copies follow.
  void refresh_low_precision();
  // After any update: graphs recorded before are invalid.
  void bump_versions();

 private:
  void place(Module& module);
  void initialise();

  ArenaOptions options_;
  std::vector<Entry> entries_;
  i64 size_ = 0;
  i64 decay_end_ = 0;
  Tensor masters_, gradients_, low_, buffers_, shadows_;
  std::vector<Tensor> moments_;
  std::vector<float> buffer_initials_;
};

}  // namespace penstock::nn
