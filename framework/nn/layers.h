// The layers that models are made of: parameters with their usual names and initial values, and the
// op that uses them.
#pragma once

#include <cstdint>
#include <functional>

#include "framework/nn/module.h"
#include "framework/ops/conv.h"
#include "framework/ops/linear.h"
#include "framework/ops/norm.h"

namespace penstock::nn {

// weight [out, in], bias [out]; PyTorch's initial values unless `init` is given.
class Linear : public Module {
 public:
  struct Options {
    i64 in = 0;
    i64 out = 0;
    bool bias = true;
    Init init = {};  // zeros: the usual one
    bool usual_init = true;
  };
  explicit Linear(const Options& options);
  // x [..., in] to [..., out].
  Tensor operator()(const Tensor& x, ops::Activation activation = ops::Activation::kNone) const;
  Parameter& weight;
  Parameter* bias = nullptr;
};

// weight [K, R, S, C / groups] (KRSC), bias [K] when asked for.
class Conv2d : public Module {
 public:
  struct Options {
    i64 in = 0;
    i64 out = 0;
    i64 kernel = 3;
    i64 stride = 1;
    i64 pad = 0;
    i64 groups = 1;
    bool bias = false;
    bool relu = false;
  };
  explicit Conv2d(const Options& options);
  Tensor operator()(const Tensor& x) const;
  Parameter& weight;
  Parameter* bias = nullptr;

 private:
  Options options_;
};

// weight [K, Q, R, S, C].
class Conv3d : public Module {
 public:
  explicit Conv3d(const Conv2d::Options& options);
  Tensor operator()(const Tensor& x) const;
  Parameter& weight;
  Parameter* bias = nullptr;

 private:
  Conv2d::Options options_;
};

// weight, bias, running_mean, running_var; one op with the ReLU and residual that follow it.
class BatchNorm : public Module {
 public:
  explicit BatchNorm(i64 channels, float initial_weight = 1);
  // x [..., C]; `residual` (shape of x, may be undefined) is added before the ReLU.
  Tensor operator()(const Tensor& x, bool relu = false, const Tensor& residual = {}) const;
  Parameter& weight;
  Parameter& bias;
  Buffer& running_mean;
  Buffer& running_var;
};

class LayerNorm : public Module {
 public:
  explicit LayerNorm(i64 width, double epsilon = 1e-5);
  Tensor operator()(const Tensor& x) const;
  // x + residual, and its norm, in one pass.
  ops::ResidualNorm operator()(const Tensor& x, const Tensor& residual) const;
  Parameter& weight;
  Parameter& bias;

 private:
  double epsilon_;
};

// weight [count, width].
class Embedding : public Module {
 public:
  Embedding(i64 count, i64 width, const Init& init);
  Tensor operator()(const Tensor& ids) const;
  Parameter& weight;
};

// Dropout that is off outside of training; `layer` is unique in its model.
class Dropout : public Module {
 public:
  Dropout(double p, std::uint32_t layer) : p_(p), layer_(layer) {}
  Tensor operator()(const Tensor& x) const;

 private:
  double p_;
  std::uint32_t layer_;
};

// Runs `block` without keeping what it needs for its backward pass; the backward pass runs it
// again, in the same precision. What is drawn inside depends on counters, so it is drawn again
// alike. All that needs a gradient inside is `x` or a parameter of an arena, whose begin_step()
// precedes every step; batch norm would count its statistics twice.
Tensor recompute(const std::function<Tensor(const Tensor&)>& block, const Tensor& x);

}  // namespace penstock::nn
