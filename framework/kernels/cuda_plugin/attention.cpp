// Attention as graphs that cuDNN recognises as flash attention. Scores never reach memory: every
// [B, H, T, T] tensor is virtual.
#include "framework/kernels/cuda_plugin/graph.h"

namespace penstock_cuda {
namespace {

struct Shapes {
  int64_t b, h, t, d;
  cudnnDataType_t type;
  Dims scores;  // [B, H, T, T]

  explicit Shapes(const PenstockGraph& g)
      : b(g.batch), h(g.heads), t(g.time), d(g.width), type(dnn_type(g.dtype)) {
    scores = {b, h, t, t};
  }
  // q, k, v inside [B, T, 3, H, D]; `transposed` swaps the last two.
  TensorSpec qkv(bool transposed) const {
    const Dims dims = transposed ? Dims{b, h, d, t} : Dims{b, h, t, d};
    const int64_t row = 3 * h * d;
    const Dims strides = transposed ? Dims{t * row, d, 1, row} : Dims{t * row, d, row, 1};
    return {dims, strides, type};
  }
  // y and dy inside [B, T, H, D].
  TensorSpec out() const { return {{b, h, t, d}, {t * h * d, d, h * d, 1}, type}; }
  TensorSpec score(cudnnDataType_t of = CUDNN_DATA_FLOAT) const {
    return {scores, packed(scores), of};
  }
  TensorSpec score_transposed() const { return {scores, {h * t * t, t * t, 1, t}, type}; }
  TensorSpec row() const {
    const Dims dims = {b, h, t, 1};
    return {dims, packed(dims), CUDNN_DATA_FLOAT};
  }
};

// Adds -inf where the mask forbids a key; returns the masked scores.
int mask(Graph& graph, const Shapes& s, const PenstockGraph& g, int scores, int lengths) {
  int masked = scores;
  if (g.with_lengths) {
    // Lengths have one entry a batch item: keys at and after it are padding.
    const int col = graph.virtual_tensor(s.score(CUDNN_DATA_INT32));
    graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, masked, -1, col, -1, 3);
    const int keep = graph.virtual_tensor(s.score(CUDNN_DATA_BOOLEAN));
    graph.pointwise(CUDNN_POINTWISE_CMP_LT, col, lengths, keep);
    const int next = graph.virtual_tensor(s.score());
    const int low = graph.scalar(-1e30F, 4);
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, masked, low, next, keep);
    masked = next;
  }
  if (g.causal) {
    const int row = graph.virtual_tensor(s.score(CUDNN_DATA_INT32));
    graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, masked, -1, row, -1, 2);
    const int col = graph.virtual_tensor(s.score(CUDNN_DATA_INT32));
    graph.pointwise(CUDNN_POINTWISE_GEN_INDEX, masked, -1, col, -1, 3);
    const int keep = graph.virtual_tensor(s.score(CUDNN_DATA_BOOLEAN));
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, col, keep);
    const int next = graph.virtual_tensor(s.score());
    const int low = graph.scalar(-1e30F, 4);
    graph.pointwise(CUDNN_POINTWISE_BINARY_SELECT, masked, low, next, keep);
    masked = next;
  }
  return masked;
}

TensorSpec lengths_spec(const Shapes& s) { return {{s.b, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_INT32}; }

}  // namespace

void build_attention_forward(Graph& graph, const PenstockGraph& g) {
  const Shapes s(g);
  const int q = graph.input(s.qkv(false));
  const int k = graph.input(s.qkv(true));
  const int v = graph.input(s.qkv(false));
  const int y = graph.output(s.out());
  const int stats = graph.output(s.row());
  const int lengths = g.with_lengths ? graph.input(lengths_spec(s)) : -1;

  const int scores = graph.virtual_tensor(s.score());
  graph.matmul(q, k, scores);
  const int scaled = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_MUL, scores, graph.scalar(g.scale, 4), scaled);
  const int masked = mask(graph, s, g, scaled, lengths);
  const int top = graph.virtual_tensor(s.row());
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, masked, top);
  const int shifted = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_SUB, masked, top, shifted);
  const int exponential = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_EXP, shifted, -1, exponential);
  const int sum = graph.virtual_tensor(s.row());
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponential, sum);
  const int log_sum = graph.virtual_tensor(s.row());
  graph.pointwise(CUDNN_POINTWISE_LOG, sum, -1, log_sum);
  graph.pointwise(CUDNN_POINTWISE_ADD, top, log_sum, stats);
  const int probabilities = graph.virtual_tensor(s.score(s.type));
  graph.pointwise(CUDNN_POINTWISE_DIV, exponential, sum, probabilities);
  graph.matmul(probabilities, v, y);
}

void build_attention_backward(Graph& graph, const PenstockGraph& g) {
  const Shapes s(g);
  const int q = graph.input(s.qkv(false));
  const int k = graph.input(s.qkv(true));   // transposed: q k'
  const int v = graph.input(s.qkv(true));   // transposed: dy v'
  const int y = graph.input(s.out());
  const int stats = graph.input(s.row());
  const int dy = graph.input(s.out());
  const int dq = graph.output(s.qkv(false));
  const int dk = graph.output(s.qkv(false));
  const int dv = graph.output(s.qkv(false));
  const int row_sum = graph.output(s.row());
  const Dims head = {s.b, s.h, s.t, s.d};
  const TensorSpec dq_spec{head, packed(head), CUDNN_DATA_FLOAT};
  const int dq_sum = g.deterministic ? -1 : graph.output(dq_spec);
  const int lengths = g.with_lengths ? graph.input(lengths_spec(s)) : -1;

  // D = sum over the head of dy * y.
  const int product = graph.virtual_tensor({head, packed(head), CUDNN_DATA_FLOAT});
  graph.pointwise(CUDNN_POINTWISE_MUL, dy, y, product);
  const int row = graph.virtual_tensor(s.row());
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, product, row);
  graph.pointwise(CUDNN_POINTWISE_MUL, row, graph.scalar(1, 4), row_sum);

  // P from the saved statistics.
  const int scores = graph.virtual_tensor(s.score());
  graph.matmul(q, k, scores);
  const int scaled = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_MUL, scores, graph.scalar(g.scale, 4), scaled);
  int masked = scaled;
  if (g.with_lengths) {
    masked = mask(graph, s, g, scaled, lengths);
  }
  const int shifted = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_SUB, masked, stats, shifted);
  PenstockGraph causal_only = g;
  causal_only.with_lengths = 0;
  const int kept = g.with_lengths ? shifted : mask(graph, s, causal_only, shifted, -1);
  const int probabilities = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_EXP, kept, -1, probabilities);
  const int probabilities_t = graph.virtual_tensor(s.score_transposed());
  graph.reshape(probabilities, probabilities_t);
  graph.matmul(probabilities_t, dy, dv);

  // dS = P * (dy v' - D) * scale.
  const int dp = graph.virtual_tensor(s.score());
  graph.matmul(dy, v, dp);
  const int centred = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_SUB, dp, row_sum, centred);
  const int weighted = graph.virtual_tensor(s.score());
  graph.pointwise(CUDNN_POINTWISE_MUL, centred, probabilities, weighted);
  const int ds = graph.virtual_tensor(s.score(s.type));
  graph.pointwise(CUDNN_POINTWISE_MUL, weighted, graph.scalar(g.scale, 4), ds);

  const int ds_t = graph.virtual_tensor(s.score_transposed());
  graph.reshape(ds, ds_t);
  graph.matmul(ds_t, q, dk);

  const int k_plain = graph.virtual_tensor(s.qkv(false));
  graph.reshape(k, k_plain);
  if (g.deterministic) {
    graph.matmul(ds, k_plain, dq);
  } else {
    graph.matmul(ds, k_plain, dq_sum);
    graph.pointwise(CUDNN_POINTWISE_IDENTITY, dq_sum, -1, dq);
  }
}

}  // namespace penstock_cuda
