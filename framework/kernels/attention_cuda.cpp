#include "framework/kernels/attention_cuda.h"

#include "framework/core/cuda.h"
#include "framework/kernels/choice.h"
#include "framework/kernels/graph_cuda.h"

namespace penstock::kernels {
namespace {

PenstockGraph describe(const Attention& a, int kind, DType dtype, bool lengths) {
  PenstockGraph g{};
  g.kind = kind;
  g.dtype = int32_t(dtype);
  g.dtype_out = int32_t(dtype);
  g.causal = a.causal;
  g.with_lengths = lengths;
  g.deterministic = deterministic();
  g.batch = a.batch;
  g.time = a.time;
  g.heads = a.heads;
  g.width = a.width;
  g.scale = float(a.scale);
  return g;
}

}  // namespace

bool attention_supported_cuda(const Attention& a, const Tensor& qkv, const Tensor& lengths) {
  return is_half(qkv.dtype()) && a.width % 8 == 0 && a.width <= 128 && a.batch > 0 && a.time > 1 &&
         graph_supported(
             describe(a, kPenstockAttentionForward, qkv.dtype(), lengths.defined())) &&
         graph_supported(describe(a, kPenstockAttentionBackward, qkv.dtype(), lengths.defined()));
}

void attention_forward_cuda(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                            const Tensor& y, const Tensor& saved) {
  const i64 step = a.heads * a.width * size_of(qkv.dtype());
  GraphCall call{.graph = describe(a, kPenstockAttentionForward, qkv.dtype(), lengths.defined()),
                 .tensors = {qkv, qkv, qkv, y, saved},
                 .written = {3, 4},
                 .offsets = {0, step, 2 * step, 0, 0, 0},
                 .device = qkv.device()};
  if (lengths.defined()) {
    call.tensors.push_back(lengths);
  }
  run_graph(call);
}

void attention_backward_cuda(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                             const Tensor& y, const Tensor& saved, const Tensor& dy,
                             const Tensor& dqkv) {
  const Device device = qkv.device();
  const i64 step = a.heads * a.width * size_of(qkv.dtype());
  const Tensor row_sum =
      Tensor::empty({a.batch, a.heads, a.time}, DType::f32, device, MemoryClass::kWorkspace);
  GraphCall call{.graph = describe(a, kPenstockAttentionBackward, qkv.dtype(), lengths.defined()),
                 .tensors = {qkv, qkv, qkv, y, saved, dy, dqkv, dqkv, dqkv, row_sum},
                 .written = {6, 7, 8},
                 .offsets = {0, step, 2 * step, 0, 0, 0, 0, step, 2 * step, 0},
                 .device = device};
  if (!deterministic()) {
    // The engine adds into this accumulator, so it starts from zero.
    const Tensor dq_sum = Tensor::zeros({a.batch, a.heads, a.time, a.width}, DType::f32, device,
                                        MemoryClass::kWorkspace);
    call.tensors.push_back(dq_sum);
    call.offsets.push_back(0);
  }
  if (lengths.defined()) {
    call.tensors.push_back(lengths);
    call.offsets.push_back(0);
  }
  run_graph(call);
}

}  // namespace penstock::kernels
