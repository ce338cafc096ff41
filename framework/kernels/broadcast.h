// Element-wise kernels over two operands that broadcast. Included by kernel files (.cu) only.
#pragma once

#include <algorithm>
#include <array>

#include "framework/core/shape.h"
#include "framework/core/tensor.h"
#include "framework/kernels/rows.h"

namespace penstock::kernels {

// The output's axes with the step that each makes in both operands (0 where one is repeated); axes
// that advance together in both are merged, so equal shapes have one axis.
struct BroadcastPlan {
  static constexpr int kMax = Shape::kMaxRank;
  int rank = 1;
  i64 dims[kMax] = {1};
  i64 step_a[kMax] = {0};
  i64 step_b[kMax] = {0};
  i64 inner() const { return dims[rank - 1]; }
};

inline BroadcastPlan plan_broadcast(const Shape& out, const Shape& a, const Shape& b) {
  std::array<i64, Shape::kMaxRank> dims{};
  std::array<i64, Shape::kMaxRank> step_a{};
  std::array<i64, Shape::kMaxRank> step_b{};
  int rank = 0;
  i64 stride_a = 1;
  i64 stride_b = 1;
  for (int i = 0; i < out.rank(); ++i) {  // from the last axis to the first
    const i64 d = out[out.rank() - 1 - i];
    const i64 da = i < a.rank() ? a[a.rank() - 1 - i] : 1;
    const i64 db = i < b.rank() ? b[b.rank() - 1 - i] : 1;
    const i64 sa = da == 1 ? 0 : stride_a;
    const i64 sb = db == 1 ? 0 : stride_b;
    stride_a *= da;
    stride_b *= db;
    if (d == 1) {
      continue;
    }
    const auto r = std::size_t(rank);
    if (rank > 0 && sa == step_a[r - 1] * dims[r - 1] && sb == step_b[r - 1] * dims[r - 1]) {
      dims[r - 1] *= d;
      continue;
    }
    dims[r] = d;
    step_a[r] = sa;
    step_b[r] = sb;
    ++rank;
  }
  BroadcastPlan plan;
  plan.rank = std::max(1, rank);
  for (int i = 0; i < rank; ++i) {
    plan.dims[i] = dims[std::size_t(rank - 1 - i)];
    plan.step_a[i] = step_a[std::size_t(rank - 1 - i)];
    plan.step_b[i] = step_b[std::size_t(rank - 1 - i)];
  }
  return plan;
}

template <class F, class Out, class A, class B>
struct BroadcastMap {
  static constexpr bool kCpuOnly = std::is_same_v<A, double> || std::is_same_v<B, double>;
  F f;
  BroadcastPlan plan;
  Out* y;
  const A* a;
  const B* b;

  // Where output element `i` of the axes before `end` reads.
  template <class Index>
  PENSTOCK_HD void offsets(Index i, int end, i64& at_a, i64& at_b) const {
    at_a = 0;
    at_b = 0;
    for (int axis = end - 1; axis >= 0; --axis) {
      const Index d = Index(plan.dims[axis]);
      const Index q = i / d;
      const Index r = i - q * d;
      at_a += i64(r) * plan.step_a[axis];
      at_b += i64(r) * plan.step_b[axis];
      i = q;
    }
  }

  // CPU: one row of the last axis, whose steps are 0 or 1.
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    i64 at_a = 0;
    i64 at_b = 0;
    offsets(row, plan.rank - 1, at_a, at_b);
    const i64 n = plan.dims[plan.rank - 1];
    Out* out = y + row * n;
    const A* pa = a + at_a;
    const B* pb = b + at_b;
    const i64 sa = plan.step_a[plan.rank - 1];
    const i64 sb = plan.step_b[plan.rank - 1];
    if (sa == 1 && sb == 1) {
      team.each(n, [&](i64 i) { out[i] = store<Out>(f(load(pa[i]), load(pb[i]))); });
    } else if (sa == 1 && sb == 0) {
      const auto vb = load(*pb);
      team.each(n, [&](i64 i) { out[i] = store<Out>(f(load(pa[i]), vb)); });
    } else if (sa == 0 && sb == 1) {
      const auto va = load(*pa);
      team.each(n, [&](i64 i) { out[i] = store<Out>(f(va, load(pb[i]))); });
    } else {
      team.each(n, [&](i64 i) { out[i] = store<Out>(f(load(pa[i * sa]), load(pb[i * sb]))); });
    }
  }
  // CUDA: one element.
  PENSTOCK_HD void operator()(i64 i) const {
    i64 at_a = 0;
    i64 at_b = 0;
    if (i < (i64(1) << 31)) {
      offsets(std::uint32_t(i), plan.rank, at_a, at_b);
    } else {
      offsets(i, plan.rank, at_a, at_b);
    }
    y[i] = store<Out>(f(load(a[at_a]), load(b[at_b])));
  }
};

// y = f(a, b) with both broadcast to y's shape.
template <class Out, class A, class B, class F>
void map_broadcast(const Tensor& y, const Tensor& a, const Tensor& b, const F& f) {
  const i64 n = y.numel();
  if (a.numel() == n && b.numel() == n) {
    map(y.device(), n, f, y.data<Out>(), a.data<A>(), b.data<B>());
    return;
  }
  if (n == 0) {
    return;
  }
  const BroadcastMap<F, Out, A, B> body{f, plan_broadcast(y.shape(), a.shape(), b.shape()),
                                        y.data<Out>(), a.data<A>(), b.data<B>()};
  if (y.device().is_cpu()) {
    for_each_row(y.device(), n / body.plan.inner(), body.plan.inner(), body);
  } else {
    for_each(y.device(), n, body);
  }
}

}  // namespace penstock::kernels
