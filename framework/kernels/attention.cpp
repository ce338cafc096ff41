#include "framework/kernels/attention.h"

#include <algorithm>

#include "framework/core/ledger.h"
#include "framework/kernels/attention_cuda.h"
#include "framework/kernels/attention_rows.h"
#include "framework/kernels/blas.h"

// The general path: products with strides straight out of the packed projection, and row kernels
// between them. It works through one sample at a time, a group of heads and a block of queries of it,
// so the scores that exist at any time are bounded: on the CPU by the larger of kScoreBytes and one
// head's block of kQueries rows, never by [B, H, T, T].
namespace penstock::kernels {
namespace {

// CPU: what stays in the caches of a core or two. Causal blocks also skip the keys behind them.
constexpr i64 kQueries = 128;
constexpr i64 kScoreBytes = i64(2) << 20;
// CUDA: few large launches.
constexpr i64 kScoreBytesCuda = i64(256) << 20;

struct Blocks {
  i64 heads;    // of a group
  i64 queries;  // of a block
};

Blocks blocks_of(const Attention& a, Device device, i64 element) {
  const bool cuda = device.models == DeviceType::kCuda;
  const i64 budget = cuda ? kScoreBytesCuda : kScoreBytes;
  const i64 row = std::max<i64>(1, a.time * element);
  const i64 most = cuda ? std::max(kQueries, budget / row) : kQueries;
  const i64 queries = std::max<i64>(1, std::min(a.time, most));
  const i64 together = std::clamp<i64>(budget / (queries * row), 1, a.heads);
  const i64 groups = (a.heads + together - 1) / together;
  return {(a.heads + groups - 1) / groups, queries};
}

// Strides of the packed projection and of the result, in elements.
struct Layout {
  i64 qkv_row, y_row;
  i64 heads, width, time;
  explicit Layout(const Attention& a)
      : qkv_row(3 * a.heads * a.width),
        y_row(a.heads * a.width),
        heads(a.heads),
        width(a.width),
        time(a.time) {}
  // Part 0, 1, 2 (query, key, value) of one head at one time.
  i64 qkv(i64 sample, i64 t, i64 part, i64 head) const {
    return ((sample * time + t) * 3 + part) * heads * width + head * width;
  }
  i64 y(i64 sample, i64 t, i64 head) const { return (sample * time + t) * y_row + head * width; }
};

// The tensor from one of its elements on: the base of a strided operand.
Tensor from(const Tensor& x, i64 element) { return x.part(element, {x.numel() - element}); }

// First `heads * queries * keys` elements of a scratch.
Tensor block(const Tensor& scratch, const ScoreBlock& at) {
  return scratch.part(0, {at.heads, at.queries, at.keys});
}

DType statistics(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// Calls body for every (sample, group of heads, block of queries). Blocks come last first: the last
// one covers every key, so sums over the blocks begin with it.
template <class F>
void each_block(const Attention& a, const Blocks& blocks, F body) {
  for (i64 sample = 0; sample < a.batch; ++sample) {
    for (i64 head = 0; head < a.heads; head += blocks.heads) {
      const i64 count = (a.time + blocks.queries - 1) / blocks.queries;
      for (i64 i = count - 1; i >= 0; --i) {
        ScoreBlock at;
        at.sample = sample;
        at.head = head;
        at.heads = std::min(blocks.heads, a.heads - head);
        at.query = i * blocks.queries;
        at.queries = std::min(blocks.queries, a.time - at.query);
        at.keys = a.causal ? at.query + at.queries : a.time;
        body(at, i == count - 1, i == 0);
      }
    }
  }
}

// scores = q k' of the block.
void scores_of(const Layout& l, const ScoreBlock& at, const Tensor& qkv, const Tensor& scores) {
  gemm({.a = from(qkv, l.qkv(at.sample, at.query, 0, at.head)),
        .b = from(qkv, l.qkv(at.sample, 0, 1, at.head)),
        .c = scores,
        .m = at.queries,
        .n = at.keys,
        .k = l.width,
        .trans_b = true,
        .lda = l.qkv_row,
        .ldb = l.qkv_row,
        .batch = at.heads,
        .stride_a = l.width,
        .stride_b = l.width,
        .stride_c = at.queries * at.keys});
}

void forward_general(const Attention& a, const Tensor& qkv, const Tensor& lengths, const Tensor& y,
                     const Tensor& saved) {
  const Layout l(a);
  const Device device = qkv.device();
  const DType wide = statistics(qkv.dtype());
  const Blocks blocks = blocks_of(a, device, size_of(wide));
  const i64 most = blocks.heads * blocks.queries * a.time;
  const Tensor scores = Tensor::empty({most}, wide, device, MemoryClass::kWorkspace);
  const Tensor narrow =
      qkv.dtype() == wide ? scores
                          : Tensor::empty({most}, qkv.dtype(), device, MemoryClass::kWorkspace);
  each_block(a, blocks, [&](const ScoreBlock& at, bool /*first*/, bool /*last*/) {
    const Tensor s = block(scores, at);
    const Tensor p = block(narrow, at);
    scores_of(l, at, qkv, s);
    attention_softmax(a, at, s, lengths, p, saved);
    gemm({.a = p,
          .b = from(qkv, l.qkv(at.sample, 0, 2, at.head)),
          .c = from(y, l.y(at.sample, at.query, at.head)),
          .m = at.queries,
          .n = a.width,
          .k = at.keys,
          .ldb = l.qkv_row,
          .ldc = l.y_row,
          .batch = at.heads,
          .stride_a = at.queries * at.keys,
          .stride_b = a.width,
          .stride_c = a.width});
  });
}

void backward_general(const Attention& a, const Tensor& qkv, const Tensor& lengths, const Tensor& y,
                      const Tensor& saved, const Tensor& dy, const Tensor& dqkv) {
  const Layout l(a);
  const Device device = qkv.device();
  const DType wide = statistics(qkv.dtype());
  const Blocks blocks = blocks_of(a, device, size_of(wide));
  const i64 most = blocks.heads * blocks.queries * a.time;
  const auto scratch = [&](i64 count, DType dtype) {
    return Tensor::empty({count}, dtype, device, MemoryClass::kWorkspace);
  };
  const bool same = qkv.dtype() == wide;
  const Tensor scores = scratch(most, wide);
  const Tensor dprobabilities = scratch(most, wide);
  const Tensor probabilities = same ? scores : scratch(most, qkv.dtype());
  const Tensor dscores = same ? dprobabilities : scratch(most, qkv.dtype());
  // Gradients of keys and values add up over the blocks of queries: in place where that is exact,
  // in f32 beside a 16-bit result.
  const bool apart = !same && a.time > blocks.queries;
  const Tensor sums = apart ? scratch(2 * a.time * blocks.heads * a.width, DType::f32) : Tensor();
  each_block(a, blocks, [&](const ScoreBlock& at, bool first, bool last) {
    const Tensor s = block(scores, at);
    const Tensor dp = block(dprobabilities, at);
    const Tensor p = block(probabilities, at);
    const Tensor ds = block(dscores, at);
    const i64 step = at.queries * at.keys;
    const Tensor q = from(qkv, l.qkv(at.sample, at.query, 0, at.head));
    const Tensor dy_block = from(dy, l.y(at.sample, at.query, at.head));
    scores_of(l, at, qkv, s);
    gemm({.a = dy_block,
          .b = from(qkv, l.qkv(at.sample, 0, 2, at.head)),
          .c = dp,
          .m = at.queries,
          .n = at.keys,
          .k = a.width,
          .trans_b = true,
          .lda = l.y_row,
          .ldb = l.qkv_row,
          .batch = at.heads,
          .stride_a = a.width,
          .stride_b = a.width,
          .stride_c = step});
    attention_softmax_gradient(a, at,
                               {.scores = s,
                                .dprobabilities = dp,
                                .lengths = lengths,
                                .saved = saved,
                                .y = y,
                                .dy = dy,
                                .probabilities = p,
                                .dscores = ds});
    gemm({.a = ds,
          .b = from(qkv, l.qkv(at.sample, 0, 1, at.head)),
          .c = from(dqkv, l.qkv(at.sample, at.query, 0, at.head)),
          .m = at.queries,
          .n = a.width,
          .k = at.keys,
          .ldb = l.qkv_row,
          .ldc = l.qkv_row,
          .batch = at.heads,
          .stride_a = step,
          .stride_b = a.width,
          .stride_c = a.width});
    // dk = ds' q and dv = p' dy, over the keys of this block.
    const i64 row = apart ? at.heads * a.width : l.qkv_row;
    const auto to = [&](i64 kind) {
      return apart ? from(sums, (kind - 1) * a.time * row)
                   : from(dqkv, l.qkv(at.sample, 0, kind, at.head));
    };
    gemm({.a = ds,
          .b = q,
          .c = to(1),
          .m = at.keys,
          .n = a.width,
          .k = at.queries,
          .trans_a = true,
          .ldb = l.qkv_row,
          .ldc = row,
          .batch = at.heads,
          .stride_a = step,
          .stride_b = a.width,
          .stride_c = a.width,
          .beta = first ? 0.0 : 1.0});
    gemm({.a = p,
          .b = dy_block,
          .c = to(2),
          .m = at.keys,
          .n = a.width,
          .k = at.queries,
          .trans_a = true,
          .ldb = l.y_row,
          .ldc = row,
          .batch = at.heads,
          .stride_a = step,
          .stride_b = a.width,
          .stride_c = a.width,
          .beta = first ? 0.0 : 1.0});
    if (apart && last) {
      attention_store_gradients(a, at, sums.part(0, {2, a.time, at.heads, a.width}), dqkv);
    }
  });
}

bool flash(const Attention& a, const Tensor& qkv, const Tensor& lengths) {
  return qkv.device().models == DeviceType::kCuda && attention_supported_cuda(a, qkv, lengths);
}

void check_attention(const Attention& a, const Tensor& qkv, const Tensor& lengths, const Tensor& y,
                     const Tensor& saved) {
  const i64 size = a.batch * a.time * a.heads * a.width;
  check(qkv.numel() == 3 * size && y.numel() == size && y.dtype() == qkv.dtype() &&
            saved.numel() == a.batch * a.heads * a.time &&
            saved.dtype() == statistics(qkv.dtype()),
        "attention: projection {}, result {} and statistics {} do not fit [B, T, 3, H, D] = [{}, "
        "{}, 3, {}, {}]",
        qkv, y, saved, a.batch, a.time, a.heads, a.width);
  check(!lengths.defined() || (lengths.dtype() == DType::i32 && lengths.numel() == a.batch),
        "attention: lengths {}; expected i32 of {} entries", lengths, a.batch);
}

// Products of the forward pass; causal ones count half.
double product_flops(const Attention& a) {
  return 4.0 * double(a.batch * a.heads * a.width) * double(a.time) * double(a.time) *
         (a.causal ? 0.5 : 1.0);
}

}  // namespace

void attention_forward(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                       const Tensor& y, const Tensor& saved) {
  check_attention(a, qkv, lengths, y, saved);
  if (y.numel() == 0) {
    return;
  }
  if (flash(a, qkv, lengths)) {
    ledger::kernel({&qkv, &lengths}, {&y, &saved}, product_flops(a));
    attention_forward_cuda(a, qkv, lengths, y, saved);
  } else {
    forward_general(a, qkv, lengths, y, saved);
  }
}

void attention_backward(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                        const Tensor& y, const Tensor& saved, const Tensor& dy,
                        const Tensor& dqkv) {
  check_attention(a, qkv, lengths, y, saved);
  check(dqkv.numel() == qkv.numel() && dqkv.dtype() == qkv.dtype() && dy.numel() == y.numel() &&
            dy.dtype() == y.dtype(),
        "attention: gradients {} and {} do not fit {} and {}", dqkv, dy, qkv, y);
  if (y.numel() == 0) {
    return;
  }
  if (flash(a, qkv, lengths)) {
    ledger::kernel({&qkv, &lengths, &y, &saved, &dy}, {&dqkv}, 2.5 * product_flops(a));
    attention_backward_cuda(a, qkv, lengths, y, saved, dy, dqkv);
  } else {
    backward_general(a, qkv, lengths, y, saved, dy, dqkv);
  }
}

}  // namespace penstock::kernels
