#include "framework/ops/conv.h"

#include <cmath>

#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/trace.h"
#include "framework/kernels/attention.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/dnn.h"
#include "framework/ops/activation_grad.h"

namespace penstock::ops {
namespace {

kernels::Conv geometry(const char* name, const Tensor& x, const Tensor& w, const Conv2d& o,
                       int spatial) {
  check(x.rank() == spatial + 2 && w.rank() == spatial + 2,
        "{}: input {} and weight {}; expected {} and {} axes", name, x, w, spatial + 2, spatial + 2);
  check(o.stride >= 1 && o.dilation >= 1 && o.groups >= 1 && o.pad >= 0,
        "{}: stride {}, dilation {}, groups {}, pad {}; expected positive values and pad >= 0", name,
        o.stride, o.dilation, o.groups, o.pad);
  check(x.dim(-1) == w.dim(-1) * o.groups && w.dim(0) % o.groups == 0,
        "{}: input {} and weight {} do not fit with {} groups; expected [.., C] and [K, .., C / g]",
        name, x, w, o.groups);
  kernels::Conv c;
  c.n = x.dim(0);
  c.channels = x.dim(-1);
  c.filters = w.dim(0);
  c.groups = o.groups;
  for (int i = 0; i < spatial; ++i) {
    const auto axis = std::size_t(3 - spatial + i);
    c.in[axis] = x.dim(1 + i);
    c.kernel[axis] = w.dim(1 + i);
    c.stride[axis] = o.stride;
    c.pad[axis] = o.pad;
    c.dilation[axis] = o.dilation;
    check(c.out(int(axis)) >= 1, "{}: kernel {} with pad {} does not fit into {}", name, w, o.pad,
          x);
  }
  return c;
}

Tensor convolve(const char* name, const Tensor& x_, const Tensor& w_, const Tensor& bias_,
                const Conv2d& o, int spatial) {
  const trace::Op op(name);
  Tensor x, w, bias;
  std::tie(x, w, bias) = amp::prepare(amp::Cast::kCompute, x_, w_, bias_);
  const kernels::Conv c = geometry(name, x, w, o, spatial);
  check(!bias.defined() || bias.numel() == c.filters, "{}: bias {} for {} filters", name, bias,
        c.filters);
  Shape shape = x.shape().with(-1, c.filters);
  for (int i = 0; i < spatial; ++i) {
    shape = shape.with(1 + i, c.out(3 - spatial + i));
  }
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::conv_forward(c, {.x = x, .w = w, .bias = bias, .y = y, .relu = o.relu});
  const Tensor saved = o.relu ? y : Tensor();
  return record(name, y, {x, w, bias}, [c, x, w, saved](Backward& b) {
    const Tensor dy = saved.defined() ? relu_gradient(b.dy(), saved) : b.dy();
    if (b.wants(2)) {
      const i64 rows = dy.numel() / c.filters;
      if (b.has_sink(2)) {
        const Sink sink = b.sink(2);
        kernels::sum_middle_into(sink.grad, double(sink.beta), dy, 1, rows, c.filters);
      } else {
        b.set(2, kernels::sum_middle(dy, 1, rows, c.filters, dy.dtype()).view({c.filters}));
      }
    }
    if (b.wants(1)) {
      if (b.has_sink(1)) {
        const Sink sink = b.sink(1);
        kernels::conv_backward_weights(c, x, dy, sink.grad, double(sink.beta));
      } else {
        const Tensor dw = Tensor::empty(w.shape(), x.dtype(), x.device());
        kernels::conv_backward_weights(c, x, dy, dw, 0);
        b.set(1, dw);
      }
    }
    if (b.wants(0)) {
      const Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
      kernels::conv_backward_data(c, dy, w, dx);
      b.set(0, dx);
    }
  });
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& options) {
  return convolve("conv2d", x, w, bias, options, 2);
}

Tensor conv3d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& options) {
  return convolve("conv3d", x, w, bias, options, 3);
}

Tensor attention(const Tensor& qkv_, const AttentionOptions& o) {
  const trace::Op op("attention");
  const Tensor qkv = std::get<0>(amp::prepare(amp::Cast::kCompute, qkv_));
  check(qkv.rank() == 3 && o.heads >= 1 && qkv.dim(2) % (3 * o.heads) == 0,
        "attention: projection {} with {} heads; expected [B, T, 3 C], C divisible by the heads",
        qkv, o.heads);
  check(!o.lengths.defined() ||
            (o.lengths.dtype() == DType::i32 && o.lengths.numel() == qkv.dim(0)),
        "attention: lengths {}; expected i32 of {} entries", o.lengths, qkv.dim(0));
  kernels::Attention a;
  a.batch = qkv.dim(0);
  a.time = qkv.dim(1);
  a.heads = o.heads;
  a.width = qkv.dim(2) / (3 * o.heads);
  a.causal = o.causal;
  a.scale = o.scale != 0 ? o.scale : 1 / std::sqrt(double(a.width));
  const Tensor y = Tensor::empty({a.batch, a.time, a.heads * a.width}, qkv.dtype(), qkv.device());
  const DType statistics = qkv.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor saved = Tensor::empty({a.batch, a.heads, a.time}, statistics, qkv.device());
  kernels::attention_forward(a, qkv, o.lengths, y, saved);
  return record("attention", y, {qkv},
                [a, qkv, lengths = o.lengths, y = y.detached(), saved](Backward& b) {
                  const Tensor dqkv = Tensor::empty(qkv.shape(), qkv.dtype(), qkv.device());
                  kernels::attention_backward(a, qkv, lengths, y, saved, b.dy(), dqkv);
                  b.set(0, dqkv);
                });
}

}  // namespace penstock::ops
