#include "framework/ops/linear.h"

#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/trace.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/blas.h"
#include "framework/ops/activation_grad.h"

namespace penstock::ops {
namespace {

using kernels::Epilogue;

// dw [out, in] += dy' x into a sink where there is one.
void weight_gradient(Backward& b, int input, const Tensor& dy, const Tensor& x, i64 rows, i64 in,
                     i64 out) {
  if (!b.wants(input)) {
    return;
  }
  kernels::Gemm g{.a = dy, .b = x, .m = out, .n = in, .k = rows, .trans_a = true};
  if (b.has_sink(input)) {
    const Sink sink = b.sink(input);
    g.c = sink.grad;
    g.beta = sink.beta;
    kernels::gemm(g);
  } else {
    g.c = Tensor::empty({out, in}, dy.dtype(), dy.device());
    kernels::gemm(g);
    b.set(input, g.c);
  }
}

void bias_gradient(Backward& b, int input, const Tensor& dy, i64 rows, i64 out) {
  if (!b.wants(input)) {
    return;
  }
  if (b.has_sink(input)) {
    const Sink sink = b.sink(input);
    kernels::sum_middle_into(sink.grad, double(sink.beta), dy, 1, rows, out);
  } else {
    b.set(input, kernels::sum_middle(dy, 1, rows, out, dy.dtype()).view({out}));
  }
}

}  // namespace

Tensor linear(const Tensor& x_, const Tensor& w_, const Tensor& bias_, Activation activation) {
  const trace::Op op("linear");
  Tensor x, w, bias;
  std::tie(x, w, bias) = amp::prepare(amp::Cast::kCompute, x_, w_, bias_);
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1),
        "linear: input {} and weight {} do not fit; expected [..., in] and [out, in]", x, w);
  const i64 out = w.dim(0);
  const i64 in = w.dim(1);
  const i64 rows = x.shape().numel(0, x.rank() - 1);
  check(!bias.defined() || (bias.rank() == 1 && bias.dim(0) == out),
        "linear: bias {} for {} outputs", bias, out);

  const Tensor y = Tensor::empty(x.shape().with(-1, out), x.dtype(), x.device());
  kernels::Gemm g{.a = x, .b = w, .c = y, .m = rows, .n = out, .k = in, .trans_b = true};
  g.bias = bias;
  if (bias.defined()) {
    g.epilogue = activation == Activation::kRelu   ? Epilogue::kBiasRelu
                 : activation == Activation::kGelu ? Epilogue::kBiasGelu
                                                   : Epilogue::kBias;
  }
  Tensor saved;  // what the activation's derivative is computed from
  if (g.epilogue == Epilogue::kBiasGelu) {
    g.aux = Tensor::empty({rows, out}, x.dtype(), x.device());
    saved = g.aux;
  }
  check(activation == Activation::kNone || bias.defined(),
        "linear: an activation is fused together with a bias; apply it apart without one");
  kernels::gemm(g);
  if (activation == Activation::kRelu) {
    saved = y.detached();
  }
  return record("linear", y, {x, w, bias},
                [x, w, saved, activation, rows, in, out](Backward& b) {
                  Tensor dy = b.dy();
                  if (activation == Activation::kRelu) {
                    dy = relu_gradient(dy, saved);
                  } else if (activation == Activation::kGelu) {
                    dy = gelu_gradient(dy, saved);
                  }
                  weight_gradient(b, 1, dy, x, rows, in, out);
                  bias_gradient(b, 2, dy, rows, out);
                  if (b.wants(0)) {
                    const Tensor dx = Tensor::empty(x.shape(), dy.dtype(), dy.device());
                    kernels::gemm({.a = dy, .b = w, .c = dx, .m = rows, .n = in, .k = out});
                    b.set(0, dx);
                  }
                });
}

}  // namespace penstock::ops
