#include "framework/kernels/dnn_cuda.h"

#include "framework/kernels/basic.h"
#include "framework/kernels/blas.h"
#include "framework/kernels/choice.h"
#include "framework/kernels/graph_cuda.h"

namespace penstock::kernels {
namespace {

PenstockGraph describe(const Conv& c, int kind, DType dtype) {
  PenstockGraph g{};
  g.kind = kind;
  g.dtype = int32_t(dtype);
  g.dtype_out = int32_t(dtype);
  g.tf32 = tf32() && dtype == DType::f32;
  g.deterministic = deterministic();
  g.spatial = c.in[0] == 1 && c.kernel[0] == 1 ? 2 : 3;
  g.n = c.n;
  g.c = c.channels;
  g.k = c.filters;
  g.groups = c.groups;
  for (int i = 0; i < 3; ++i) {
    const auto k = std::size_t(i);
    g.in[i] = c.in[k];
    g.out[i] = c.out(i);
    g.kernel[i] = c.kernel[k];
    g.stride[i] = c.stride[k];
    g.pad[i] = c.pad[k];
    g.dilation[i] = c.dilation[k];
  }
  return g;
}

}  // namespace

void conv_forward_cuda(const Conv& c, const ConvForward& t) {
  GraphCall call{.graph = describe(c, kPenstockConvForward, t.x.dtype()),
                 .tensors = {t.x, t.w, t.y},
                 .written = {2},
                 .device = t.x.device()};
  call.graph.relu = t.relu;
  call.graph.with_bias = t.bias.defined();
  if (t.bias.defined()) {
    call.tensors.push_back(t.bias);
  }
  run_graph(call);
}

void conv_backward_data_cuda(const Conv& c, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  run_graph({.graph = describe(c, kPenstockConvBackwardData, dy.dtype()),
             .tensors = {dy, w, dx},
             .written = {2},
             .device = dy.device()});
}

void conv_backward_weights_cuda(const Conv& c, const Tensor& x, const Tensor& dy, const Tensor& dw,
                                double beta) {
  const GraphCall call{.graph = describe(c, kPenstockConvBackwardWeights, x.dtype()),
                       .tensors = {x, dy, dw},
                       .written = {2},
                       .device = x.device()};
  if (dw.dtype() == x.dtype() && beta == 0) {
    run_graph(call);
    return;
  }
  // cuDNN writes weight gradients in the operands' dtype and never adds: through scratch.
  GraphCall into = call;
  into.tensors[2] = Tensor::empty(dw.shape(), x.dtype(), x.device(), MemoryClass::kWorkspace);
  run_graph(into);
  if (beta == 0) {
    cast_into(dw, into.tensors[2]);
  } else {
    check(beta == 1, "convolution: weight gradients are overwritten or added to, beta {} is neither",
          beta);
    add_into(dw, into.tensors[2]);
  }
}

std::array<std::string, 3> conv_implementations_cuda(const Conv& c, DType dtype) {
  return {graph_engine(describe(c, kPenstockConvForward, dtype)),
          graph_engine(describe(c, kPenstockConvBackwardData, dtype)),
          graph_engine(describe(c, kPenstockConvBackwardWeights, dtype))};
}

}  // namespace penstock::kernels
