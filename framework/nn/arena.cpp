#include "framework/nn/arena.h"

#include <span>

#include "framework/autograd/autograd.h"
#include "framework/kernels/basic.h"

namespace penstock::nn {
namespace {

constexpr i64 padded(i64 n) {
  return (n + ParameterArena::kPad - 1) / ParameterArena::kPad * ParameterArena::kPad;
}

}  // namespace

ParameterArena::ParameterArena(Module& module, const ArenaOptions& options) : options_(options) {
  const PersistentScope persistent;
  place(module);
  const Device device = options.device;
  masters_ = Tensor::zeros({size_}, options.dtype, device, MemoryClass::kWeights);
  if (options.gradients) {
    gradients_ = Tensor::zeros({size_}, options.dtype, device, MemoryClass::kGradients);
  }
  if (is_half(options.compute)) {
    low_ = Tensor::zeros({size_}, options.compute, device, MemoryClass::kWeights);
  }
  for (int i = 0; i < options.moments; ++i) {
    moments_.push_back(Tensor::zeros({size_}, options.dtype, device, MemoryClass::kOptimizer));
  }
  if (!buffer_initials_.empty()) {
    const Shape n = {i64(buffer_initials_.size())};
    buffers_ = Tensor::empty(n, DType::f32, device, MemoryClass::kBuffers);
    shadows_ = Tensor::empty(n, DType::f32, device, MemoryClass::kBuffers);
  }
  for (const Entry& e : entries_) {
    Parameter& p = *e.parameter;
    const Tensor sink = options.gradients ? gradients_.part(e.offset, p.shape) : Tensor();
    p.value = leaf(masters_.part(e.offset, p.shape), e.name, sink);
    if (low_.defined()) {
      set_low_precision(p.value, low_.part(e.offset, p.shape));
    }
  }
  i64 offset = 0;
  module.visit_buffers([&](const std::string&, Buffer& b) {
    b.value = buffers_.part(offset, b.shape);
    b.shadow = shadows_.part(offset, b.shape);
    offset += padded(b.shape.numel());
  });
  initialise();
}

void ParameterArena::place(Module& module) {
  // Two passes keep the decayed ones together, so that the optimizer needs one boundary.
  for (const bool decay : {true, false}) {
    module.visit_parameters([&](const std::string& name, Parameter& p) {
      if (p.decay == decay) {
        entries_.push_back({.name = name, .parameter = &p, .offset = size_});
        size_ += padded(p.shape.numel());
      }
    });
    if (decay) {
      decay_end_ = size_;
    }
  }
  module.visit_buffers([&](const std::string&, Buffer& b) {
    const auto begin = buffer_initials_.size();
    buffer_initials_.resize(begin + std::size_t(padded(b.shape.numel())), b.initial);
  });
}

void ParameterArena::initialise() {
  if (options_.device.is_meta()) {
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(size_));
  for (const Entry& e : entries_) {
    nn::initialise(values.data() + e.offset, e.parameter->shape.numel(), e.parameter->init,
                   options_.seed, e.name);
  }
  // Through host memory outside of the regions: a plan on meta sees no temporary either.
  if (options_.dtype == DType::f64) {
    const std::vector<double> wide(values.begin(), values.end());
    masters_.load_host(wide.data());
  } else {
    masters_.load_host(values.data());
  }
  if (buffers_.defined()) {
    buffers_.load_host(buffer_initials_.data());
    shadows_.load_host(buffer_initials_.data());
  }
  refresh_low_precision();
}

void ParameterArena::begin_step() {
  for (const Entry& e : entries_) {
    clear_grad_written(e.parameter->value);
  }
}

void ParameterArena::finish_gradients() {
  for (const Entry& e : entries_) {
    if (!grad_written(e.parameter->value)) {
      gradients_.part(e.offset, e.parameter->shape).fill_zero();
    }
  }
}

void ParameterArena::refresh_low_precision() {
  if (low_.defined()) {
    kernels::cast_into(low_, masters_);
  }
  bump_versions();
}

void ParameterArena::bump_versions() {
  for (const Entry& e : entries_) {
    bump_version(e.parameter->value);
  }
}

}  // namespace penstock::nn
