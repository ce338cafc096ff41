// The tape: ops record a closure, backward() runs the closures in reverse order of creation.
//
// The engine, not the op, accumulates, casts gradients back to the dtype of what they belong to,
// and sums over broadcast dimensions; a closure is only the formula. No double backward.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "framework/core/tensor.h"

namespace penstock {

// Where the gradient of a parameter goes. A kernel or library may write it here directly:
// grad = beta * grad + dx, in f32 (f64 for an f64 parameter).
struct Sink {
  Tensor grad;
  float beta = 0;
};

// What a closure sees: gradients of its outputs, and where gradients of its inputs go.
class Backward {
 public:
  // Gradient of output `i`, in the dtype and shape of that output; undefined when nothing depends
  // on it. With several outputs a closure must cope with undefined ones.
  const Tensor& dy(int i = 0) const;
  // True when dy() is the implicit one of backward(loss): a closure that has already computed the
  // gradient under the loss seed passes it on unchanged.
  bool dy_is_seed() const { return dy_is_seed_; }
  // Does this pass add to what the sinks hold (every micro-batch but the first)?
  bool accumulates() const;
  // Does anything want the gradient of input `i`? Skip the work otherwise.
  bool wants(int i) const;
  // True when input `i` is a parameter: then sink(i) may be used instead of set(i, dx).
  bool has_sink(int i) const;
  // The sink of input `i`; asking for it promises to write it. At most once per closure and input.
  Sink sink(int i);
  // Hands over the gradient of input `i`: the output's dtype or any wider one, the input's shape or
  // one that broadcasting made of it.
  void set(int i, const Tensor& dx);

 private:
  friend class Engine;
  GradNode* node_ = nullptr;
  class Engine* engine_ = nullptr;
  bool dy_is_seed_ = false;
};

using BackwardFn = std::function<void(Backward&)>;

// Returns `y` with an edge to a new node named `op`, or `y` itself when no input needs a gradient or
// gradients are off. What the closure captures stays alive until it ran or the graph is dropped.
// `op` must live for the whole process.
Tensor record(const char* op, const Tensor& y, std::initializer_list<Tensor> inputs,
              BackwardFn backward);
// The same for an op with several outputs.
std::vector<Tensor> record_all(const char* op, std::vector<Tensor> outputs,
                               const std::vector<Tensor>& inputs, BackwardFn backward);

// Would record() make a node for these inputs?
bool needs_grad(std::initializer_list<Tensor> inputs);

// While one lives on this thread, nothing is recorded: evaluation, optimizer, probes.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

// While one lives on this thread, recording is on again inside a NoGrad or a closure: a block that
// is run a second time during the backward pass.
class WithGrad {
 public:
  WithGrad();
  ~WithGrad();
  WithGrad(const WithGrad&) = delete;
  WithGrad& operator=(const WithGrad&) = delete;

 private:
  bool before_;
};

struct BackwardOptions {
  // Gradient of `y`; undefined means 1 for a single element, which closures may detect.
  Tensor seed;
  // false: sinks are overwritten by their first contribution (beta 0); true: added to (beta 1), as
  // for every micro-batch but the first.
  bool accumulate = false;
};
// Runs the graph below `y`. Afterwards the graph is spent: closures and what they captured are gone.
// Throws Error when a parameter was updated after the graph was recorded.
void backward(const Tensor& y, const BackwardOptions& options = {});

// A leaf: a tensor whose gradient is wanted. `grad` (f32, or f64 for f64 values) is the sink; when
// undefined it is allocated at the first gradient.
Tensor leaf(const Tensor& value, const std::string& name = "leaf", const Tensor& grad = {});
// The gradient of a leaf; undefined before the first backward. Shape of the leaf.
Tensor grad(const Tensor& leaf);
const std::string& leaf_name(const Tensor& leaf);
// Gives the leaf a low-precision twin that mixed precision reads instead of casting.
void set_low_precision(const Tensor& leaf, const Tensor& twin);
// The twin of dtype `dtype`, with the leaf's edge; undefined when there is none.
Tensor low_precision(const Tensor& leaf, DType dtype);
// Tells the engine that the leaf's value changed: graphs recorded before are invalid.
void bump_version(const Tensor& leaf);
// Did the last backward() (since the flag was cleared by a beta-0 pass) write this leaf's sink?
bool grad_written(const Tensor& leaf);
void clear_grad_written(const Tensor& leaf);
// Called with the leaf as soon as its last contribution of a backward() has been delivered, in
// reverse order of use. Data parallel starts its reductions here. Null for none.
void set_grad_ready_hook(std::function<void(const Tensor& leaf)> hook);

}  // namespace penstock
