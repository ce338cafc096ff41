#include "framework/kernels/attention_rows.h"

#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/kernels/rows.h"

namespace penstock::kernels {
namespace {

struct Rows {
  i64 time, heads;  // of the whole tensor
  ScoreBlock at;
  bool causal;
  const std::int32_t* lengths;

  // Keys that the row's query may look at are the first ones.
  PENSTOCK_HD i64 visible(i64 query) const {
    i64 n = at.keys;
    if (causal && query + 1 < n) {
      n = query + 1;
    }
    if (lengths != nullptr) {
      const i64 length = lengths[at.sample];
      n = length < n ? (length > 0 ? length : 0) : n;
    }
    return n;
  }
  PENSTOCK_HD i64 query(i64 row) const { return at.query + row % at.queries; }
  PENSTOCK_HD i64 head(i64 row) const { return at.head + row / at.queries; }
  // Element of [B, H, T].
  PENSTOCK_HD i64 statistic(i64 row) const {
    return (at.sample * heads + head(row)) * time + query(row);
  }
  // First element of a row of [B, T, H, D].
  PENSTOCK_HD i64 vector(i64 row, i64 width) const {
    return ((at.sample * time + query(row)) * heads + head(row)) * width;
  }
};

template <class T, class S>
struct Softmax {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  Rows rows;
  S* scores;
  T* probabilities;
  S* saved;
  S scale;

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    S* x = scores + row * rows.at.keys;
    T* p = probabilities + row * rows.at.keys;
    const i64 n = rows.visible(rows.query(row));
    const S by = scale;
    const S infinity = S(__builtin_inff());
    const S most = team.max(n, -infinity, [=](i64 i) { return x[i] * by; });
    // Every exponential is computed once and kept; a thread reads back what it wrote itself.
    const S sum = team.sum(n, [=](i64 i) {
      const S e = math::exp(x[i] * by - most);
      x[i] = e;
      return e;
    });
    const S factor = n > 0 ? S(1) / sum : S(0);
    team.each(n, [=](i64 i) { p[i] = store<T>(x[i] * factor); });
    team.each(rows.at.keys - n, [=](i64 i) { p[n + i] = store<T>(S(0)); });
    if (team.leader()) {
      saved[rows.statistic(row)] = n > 0 ? most + math::log(sum) : -infinity;
    }
  }
};

template <class T, class S>
struct SoftmaxGradient {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  Rows rows;
  i64 width;
  const S* scores;
  const S* dprobabilities;
  const S* saved;
  const T* y;
  const T* dy;
  T* probabilities;
  T* dscores;
  S scale;

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const S* x = scores + row * rows.at.keys;
    const S* dp = dprobabilities + row * rows.at.keys;
    T* p = probabilities + row * rows.at.keys;
    T* ds = dscores + row * rows.at.keys;
    const T* out = y + rows.vector(row, width);
    const T* dout = dy + rows.vector(row, width);
    const i64 n = rows.visible(rows.query(row));
    const S by = scale;
    const S level = saved[rows.statistic(row)];
    // sum of p dp over the row, without the row.
    const S mean = team.sum(width, [=](i64 i) { return S(load(out[i])) * S(load(dout[i])); });
    team.each(n, [=](i64 i) {
      const S v = math::exp(x[i] * by - level);
      const S dv = v * (dp[i] - mean) * by;
      p[i] = store<T>(v);
      ds[i] = store<T>(dv);
    });
    team.each(rows.at.keys - n, [=](i64 i) {
      p[n + i] = store<T>(S(0));
      ds[n + i] = store<T>(S(0));
    });
  }
};

// One (kind, time) of the sums: its heads into the packed gradient.
template <class T>
struct StoreGradients {
  i64 time, heads, width;  // of the whole tensor
  ScoreBlock at;
  const float* sums;
  T* dqkv;

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const i64 kind = row / time;
    const i64 t = row % time;
    const float* from = sums + row * at.heads * width;
    T* to = dqkv + (((at.sample * time + t) * 3 + 1 + kind) * heads + at.head) * width;
    team.each(at.heads * width, [=](i64 i) { to[i] = store<T>(from[i]); });
  }
};

Rows rows_of(const Attention& a, const ScoreBlock& at, const Tensor& lengths) {
  return {.time = a.time,
          .heads = a.heads,
          .at = at,
          .causal = a.causal,
          .lengths = lengths.defined() ? lengths.data<std::int32_t>() : nullptr};
}

}  // namespace

void attention_softmax(const Attention& a, const ScoreBlock& at, const Tensor& scores,
                       const Tensor& lengths, const Tensor& probabilities, const Tensor& saved) {
  ledger::kernel({&scores}, {&probabilities}, 4.0 * double(scores.numel()));
  visit_float(probabilities.dtype(), "attention", [&]<class T>() {
    using S = compute_t<T>;
    for_each_row(scores.device(), at.heads * at.queries, at.keys,
                 Softmax<T, S>{.rows = rows_of(a, at, lengths),
                               .scores = scores.data<S>(),
                               .probabilities = probabilities.data<T>(),
                               .saved = saved.data<S>(),
                               .scale = S(a.scale)});
  });
}

void attention_softmax_gradient(const Attention& a, const ScoreBlock& at,
                                const ScoreGradients& t) {
  ledger::kernel({&t.scores, &t.dprobabilities}, {&t.probabilities, &t.dscores},
                 6.0 * double(t.scores.numel()));
  visit_float(t.y.dtype(), "attention", [&]<class T>() {
    using S = compute_t<T>;
    for_each_row(t.scores.device(), at.heads * at.queries, 2 * at.keys,
                 SoftmaxGradient<T, S>{.rows = rows_of(a, at, t.lengths),
                                       .width = a.width,
                                       .scores = t.scores.data<S>(),
                                       .dprobabilities = t.dprobabilities.data<S>(),
                                       .saved = t.saved.data<S>(),
                                       .y = t.y.data<T>(),
                                       .dy = t.dy.data<T>(),
                                       .probabilities = t.probabilities.data<T>(),
                                       .dscores = t.dscores.data<T>(),
                                       .scale = S(a.scale)});
  });
}

void attention_store_gradients(const Attention& a, const ScoreBlock& at, const Tensor& sums,
                               const Tensor& dqkv) {
  ledger::kernel({&sums}, {});
  ledger::bytes(dqkv.memory_class(), 0, double(sums.numel() * size_of(dqkv.dtype())));
  visit_float(dqkv.dtype(), "attention", [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      for_each_row(dqkv.device(), 2 * a.time, at.heads * a.width,
                   StoreGradients<T>{.time = a.time,
                                     .heads = a.heads,
                                     .width = a.width,
                                     .at = at,
                                     .sums = sums.data<float>(),
                                     .dqkv = dqkv.data<T>()});
    }
  });
}

}  // namespace penstock::kernels
