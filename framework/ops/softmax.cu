#include "framework/ops/softmax.h"

#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/trace.h"
#include "framework/kernels/rows.h"

namespace penstock::ops {
namespace {

using kernels::load;
using kernels::store;

template <class T, bool kLog>
struct Forward {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* y;
  const T* x;
  i64 n;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const T* in = x + row * n;
    T* out = y + row * n;
    const S lowest = -math::infinity<S>();
    const S top = team.max(n, lowest, [&](i64 i) { return S(load(in[i])); });
    // (-inf) - (-inf) would be NaN: a row without a finite entry is shifted by 0.
    const S shift = top == lowest ? S(0) : top;
    const S sum = team.sum(n, [&](i64 i) { return math::exp(S(load(in[i])) - shift); });
    if constexpr (kLog) {
      const S log_sum = math::log(sum) + shift;
      team.each(n, [&](i64 i) {
        const S v = S(load(in[i]));
        out[i] = store<T>(v == lowest ? lowest : v - log_sum);
      });
    } else {
      const S inverse = sum > S(0) ? S(1) / sum : S(0);
      team.each(n, [&](i64 i) { out[i] = store<T>(math::exp(S(load(in[i])) - shift) * inverse); });
    }
  }
};

template <class T, bool kLog>
struct Gradient {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* dx;
  const T* dy;
  const T* y;
  i64 n;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const T* g = dy + row * n;
    const T* p = y + row * n;
    T* out = dx + row * n;
    if constexpr (kLog) {
      const S sum = team.sum(n, [&](i64 i) { return S(load(g[i])); });
      team.each(n, [&](i64 i) {
        const S lp = S(load(p[i]));
        // Where the result is -inf nothing depends on the input.
        out[i] = store<T>(lp == -math::infinity<S>() ? S(0) : S(load(g[i])) - math::exp(lp) * sum);
      });
    } else {
      const S dot = team.sum(n, [&](i64 i) { return S(load(g[i])) * S(load(p[i])); });
      team.each(n, [&](i64 i) { out[i] = store<T>(S(load(p[i])) * (S(load(g[i])) - dot)); });
    }
  }
};

template <bool kLog>
Tensor apply(const char* name, const Tensor& x_) {
  const trace::Op op(name);
  const Tensor x = std::get<0>(amp::prepare(amp::Cast::kFloat32, x_));
  check(x.rank() >= 1, "{}: {} has no axis", name, x);
  const i64 n = x.dim(-1);
  const i64 rows = x.shape().numel(0, x.rank() - 1);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  ledger::kernel({&x}, {&y}, 5.0 * double(x.numel()));
  visit_float(x.dtype(), name, [&]<class T>() {
    kernels::for_each_row(x.device(), rows, n, Forward<T, kLog>{y.data<T>(), x.data<T>(), n});
  });
  return record(name, y, {x}, [y = y.detached(), name, rows, n](Backward& b) {
    const Tensor& dy = b.dy();
    const Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
    ledger::kernel({&dy, &y}, {&dx}, 4.0 * double(dy.numel()));
    visit_float(dy.dtype(), name, [&]<class T>() {
      kernels::for_each_row(dy.device(), rows, n,
                            Gradient<T, kLog>{dx.data<T>(), dy.data<T>(), y.data<T>(), n});
    });
    b.set(0, dx);
  });
}

}  // namespace

Tensor softmax(const Tensor& x) { return apply<false>("softmax", x); }
Tensor log_softmax(const Tensor& x) { return apply<true>("log_softmax", x); }

}  // namespace penstock::ops
