#include "framework/nn/layers.h"

#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/shape_ops.h"

namespace penstock::nn {

Linear::Linear(const Options& o)
    : weight(
          parameter("weight", {o.out, o.in}, o.usual_init ? Init::fan_in_uniform(o.in) : o.init)) {
  if (o.bias) {
    bias = &parameter("bias", {o.out}, o.usual_init ? Init::fan_in_uniform(o.in) : Init::zeros(),
                      false);
  }
}

Tensor Linear::operator()(const Tensor& x, ops::Activation activation) const {
  return ops::linear(x, weight, bias != nullptr ? bias->value : Tensor(), activation);
}

namespace {

i64 fan_out(const Conv2d::Options& o, i64 taps) {
  return o.out * taps / o.groups;
}

ops::Conv2d conv_options(const Conv2d::Options& o) {
  return {.stride = o.stride, .pad = o.pad, .groups = o.groups, .relu = o.relu};
}

}  // namespace

Conv2d::Conv2d(const Options& o)
    : weight(parameter("weight", {o.out, o.kernel, o.kernel, o.in / o.groups},
                       Init::kaiming_normal(fan_out(o, o.kernel * o.kernel)))),
      options_(o) {
  if (o.bias) {
    bias = &parameter("bias", {o.out}, Init::fan_in_uniform(o.in / o.groups * o.kernel * o.kernel),
                      false);
  }
}

Tensor Conv2d::operator()(const Tensor& x) const {
  return ops::conv2d(x, weight, bias != nullptr ? bias->value : Tensor(), conv_options(options_));
}

Conv3d::Conv3d(const Conv2d::Options& o)
    : weight(parameter("weight", {o.out, o.kernel, o.kernel, o.kernel, o.in / o.groups},
                       Init::kaiming_normal(fan_out(o, o.kernel * o.kernel * o.kernel)))),
      options_(o) {
  if (o.bias) {
    bias =
        &parameter("bias", {o.out},
                   Init::fan_in_uniform(o.in / o.groups * o.kernel * o.kernel * o.kernel), false);
  }
}

Tensor Conv3d::operator()(const Tensor& x) const {
  return ops::conv3d(x, weight, bias != nullptr ? bias->value : Tensor(), conv_options(options_));
}

BatchNorm::BatchNorm(i64 channels, float initial_weight)
    : weight(parameter("weight", {channels}, initial_weight == 1 ? Init::ones() : Init::zeros(),
                       false)),
      bias(parameter("bias", {channels}, Init::zeros(), false)),
      running_mean(buffer("running_mean", {channels}, 0)),
      running_var(buffer("running_var", {channels}, 1)) {}

Tensor BatchNorm::operator()(const Tensor& x, bool relu, const Tensor& residual) const {
  return ops::batch_norm(x, weight, bias,
                         {.training = training(),
                          .relu = relu,
                          .residual = residual,
                          .running_mean = running_mean.value,
                          .running_var = running_var.value,
                          .shadow_mean = running_mean.shadow,
                          .shadow_var = running_var.shadow});
}

LayerNorm::LayerNorm(i64 width, double epsilon)
    : weight(parameter("weight", {width}, Init::ones(), false)),
      bias(parameter("bias", {width}, Init::zeros(), false)),
      epsilon_(epsilon) {}

Tensor LayerNorm::operator()(const Tensor& x) const {
  return ops::layer_norm(x, weight, bias, epsilon_);
}

ops::ResidualNorm LayerNorm::operator()(const Tensor& x, const Tensor& residual) const {
  return ops::residual_layer_norm(x, residual, weight, bias, epsilon_);
}

Embedding::Embedding(i64 count, i64 width, const Init& init)
    : weight(parameter("weight", {count, width}, init)) {}

Tensor Embedding::operator()(const Tensor& ids) const {
  return ops::embedding(weight, ids);
}

Tensor Dropout::operator()(const Tensor& x) const {
  return training() && p_ > 0 ? ops::dropout(x, {.p = p_, .layer = layer_}) : x;
}

Tensor recompute(const std::function<Tensor(const Tensor&)>& block, const Tensor& x) {
  if (!needs_grad({x})) {
    return block(x);
  }
  Tensor y;
  {
    const NoGrad no_grad;
    y = block(x.detached());
  }
  const Tensor input = x.detached();
  const DType precision = amp::compute_dtype();
  return record("recompute", y, {x}, [block, input, precision](Backward& b) {
    // The second run's graph ends in a node that only catches the gradient of the input.
    Tensor dx;
    Tensor again;
    {
      const WithGrad with_grad;
      const amp::Scope scope(precision);
      const Tensor anchor = leaf(input, "recompute");
      const Tensor caught =
          record("recompute_input", input, {anchor}, [&dx](Backward& inner) { dx = inner.dy(); });
      again = block(caught);
      // A pass of its own must not start the sinks anew: a weight may have been used before, by
      // another block or outside. Which ones hold nothing yet, begin_step() has said.
      backward(again, {.seed = b.dy(), .accumulate = true});
    }
    if (b.wants(0)) {
      b.set(0, dx);
    }
  });
}

}  // namespace penstock::nn
