// Gradients of per-channel parameters: two sums over rows in one pass, straight into the sinks.
// Included by kernel files (.cu) only.
#pragma once

#include "framework/autograd/autograd.h"
#include "framework/kernels/rows.h"

namespace penstock::ops {

template <class S>
struct Pair {
  S first;
  S second;
  PENSTOCK_HD Pair& operator+=(const Pair& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
};

// Both sums over the chunks of column c, the same on every thread of the team.
template <class Team, class S>
PENSTOCK_HD Pair<S> sum_pairs(const Team& team, const Pair<S>* partial, i64 chunks, i64 cols,
                              i64 c) {
  return {team.sum(chunks, [&](i64 k) { return partial[k * cols + c].first; }),
          team.sum(chunks, [&](i64 k) { return partial[k * cols + c].second; })};
}

// out = beta out + sum of the chunks; either output may be null.
template <class S>
struct FinishPairs {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  S* first;
  S* second;
  const Pair<S>* partial;
  i64 cols, chunks;
  S beta_first, beta_second;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 c) const {
    const Pair<S> sum = sum_pairs(team, partial, chunks, cols, c);
    if (!team.leader()) {
      return;
    }
    if (first != nullptr) {
      first[c] = sum.first + (beta_first != S(0) ? beta_first * first[c] : S(0));
    }
    if (second != nullptr) {
      second[c] = sum.second + (beta_second != S(0) ? beta_second * second[c] : S(0));
    }
  }
};

// Sums term(row, col) over the rows and delivers .first to input `a` and .second to input `b_` (-1:
// to none) of the node.
template <class S, class Term>
void sum_parameters(Backward& b, int a, int b_, Device device, i64 rows, i64 cols,
                    const Term& term) {
  const bool want_a = b.wants(a);
  const bool want_b = b_ >= 0 && b.wants(b_);
  if (!want_a && !want_b) {
    return;
  }
  const i64 chunks = kernels::column_chunks(rows, cols);
  const DType dtype = dtype_of<S>;
  const Tensor partial = Tensor::empty({chunks, cols, 2}, dtype, device, MemoryClass::kWorkspace);
  auto* pairs = reinterpret_cast<Pair<S>*>(partial.data<S>());
  kernels::column_sums<Pair<S>>(device, rows, cols, chunks, term, pairs);
  const auto target = [&](bool wanted, int input) {
    if (!wanted) {
      return Sink{};
    }
    return b.has_sink(input) ? b.sink(input) : Sink{Tensor::empty({cols}, dtype, device), 0};
  };
  const Sink first = target(want_a, a);
  const Sink second = target(want_b, b_);
  kernels::for_each_row(device, cols, chunks,
                        FinishPairs<S>{first.grad.defined() ? first.grad.data<S>() : nullptr,
                                       second.grad.defined() ? second.grad.data<S>() : nullptr,
                                       pairs, cols, chunks, S(first.beta), S(second.beta)});
  if (want_a && !b.has_sink(a)) {
    b.set(a, first.grad);
  }
  if (want_b && !b.has_sink(b_)) {
    b.set(b_, second.grad);
  }
}

}  // namespace penstock::ops
