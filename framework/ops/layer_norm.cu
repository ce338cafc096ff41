#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/trace.h"
#include "framework/kernels/rows.h"
#include "framework/ops/norm.h"
#include "framework/ops/parameter_sums.h"

namespace penstock::ops {
namespace {

using kernels::load;
using kernels::store;

// One row. kRms: no mean is subtracted, no beta added.
template <class T, bool kRms>
struct Forward {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* y;
  T* sum;  // x + residual; null without residual
  const T* x;
  const T* residual;  // null: none
  const S* gamma;
  const S* beta;  // null: none
  S* mean;
  S* inverse;  // 1 / sqrt(var + epsilon)
  i64 n;
  S epsilon;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const T* in = x + row * n;
    if (residual != nullptr) {
      const T* r = residual + row * n;
      T* s = sum + row * n;
      team.write(
          n, s, [](i64 /*i*/, S a, S b) { return a + b; }, in, r);
      team.sync();
      in = s;  // statistics of what is stored, so that the backward pass sees the same numbers
    }
    S centre = 0;
    if constexpr (!kRms) {
      centre = team.sum_of(
                   n, [](i64 /*i*/, S v) { return v; }, in) /
               S(n);
    }
    const S squares = team.sum_of(
        n,
        [&](i64 /*i*/, S v) {
          const S d = v - centre;
          return d * d;
        },
        in);
    const S inv = S(1) / math::sqrt(squares / S(n) + epsilon);
    if (team.leader()) {
      if constexpr (!kRms) {
        mean[row] = centre;
      }
      inverse[row] = inv;
    }
    T* out = y + row * n;
    if (beta != nullptr) {
      team.write(
          n, out,
          [&](i64 /*i*/, S v, S scale, S shift) { return (v - centre) * inv * scale + shift; }, in,
          gamma, beta);
    } else {
      team.write(
          n, out, [&](i64 /*i*/, S v, S scale) { return (v - centre) * inv * scale; }, in, gamma);
    }
  }
};

template <class T, bool kRms>
struct InputGradient {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* dx;
  const T* dy;
  const T* x;
  const T* stream;  // gradient that arrives beside, added to dx; null: none
  const S* gamma;
  const S* mean;
  const S* inverse;
  i64 n;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const T* g = dy + row * n;
    const T* in = x + row * n;
    T* out = dx + row * n;
    const S centre = kRms ? S(0) : mean[row];
    const S inv = inverse[row];
    S along = 0;
    if constexpr (!kRms) {
      along = team.sum_of(
                  n, [](i64 /*i*/, S d, S scale) { return d * scale; }, g, gamma) /
              S(n);
    }
    const S across =
        team.sum_of(
            n,
            [&](i64 /*i*/, S d, S v, S scale) { return d * scale * (v - centre) * inv; }, g, in,
            gamma) /
        S(n);
    if (stream != nullptr) {
      team.write(
          n, out,
          [&](i64 /*i*/, S d, S v, S scale, S beside) {
            const S hat = (v - centre) * inv;
            return (d * scale - along - hat * across) * inv + beside;
          },
          g, in, gamma, stream + row * n);
    } else {
      team.write(
          n, out,
          [&](i64 /*i*/, S d, S v, S scale) {
            const S hat = (v - centre) * inv;
            return (d * scale - along - hat * across) * inv;
          },
          g, in, gamma);
    }
  }
};

// Terms of the parameter gradients at (row, column).
template <class T, bool kRms>
struct ParameterTerm {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const T* dy;
  const T* x;
  const S* mean;
  const S* inverse;
  i64 n;
  PENSTOCK_HD Pair<S> operator()(i64 row, i64 c) const {
    const S g = S(load(dy[row * n + c]));
    const S centre = kRms ? S(0) : mean[row];
    return {g * (S(load(x[row * n + c])) - centre) * inverse[row], g};
  }

  static constexpr int kPack = kernels::pack_length<T>();
  PENSTOCK_HD bool packs(i64 width) const {
    return width % kPack == 0 && kernels::pack_aligned<kPack>(x) &&
           kernels::pack_aligned<kPack>(dy);
  }
  PENSTOCK_HD void add(i64 row, i64 c, Pair<S>* sums) const {
    using P = kernels::Pack<T, kPack>;
    const P g = *reinterpret_cast<const P*>(dy + row * n + c);
    const P v = *reinterpret_cast<const P*>(x + row * n + c);
    const S centre = kRms ? S(0) : mean[row];
    const S inv = inverse[row];
    for (int k = 0; k < kPack; ++k) {
      const S d = S(load(g.v[k]));
      sums[k] += Pair<S>{d * (S(load(v.v[k])) - centre) * inv, d};
    }
  }
};

struct Saved {
  Tensor x, gamma, mean, inverse;
  i64 rows = 0;
  i64 n = 0;
};

struct Made {
  Tensor y, sum;
  Saved saved;
};

template <bool kRms>
Made forward(const char* name, const Tensor& x, const Tensor& residual, const Tensor& gamma,
             const Tensor& beta, double epsilon) {
  check(x.rank() >= 1 && is_float(x.dtype()), "{}: {}; expected floats [..., C]", name, x);
  const i64 n = x.dim(-1);
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  check(gamma.numel() == n && gamma.dtype() == wide, "{}: gamma {} for {}; expected {} [{}]", name,
        gamma, x, wide, n);
  check(!beta.defined() || (beta.numel() == n && beta.dtype() == wide),
        "{}: beta {} for {}; expected {} [{}]", name, beta, x, wide, n);
  check(!residual.defined() || (residual.shape() == x.shape() && residual.dtype() == x.dtype()),
        "{}: residual {} for {}", name, residual, x);
  Made m;
  m.saved.rows = x.shape().numel(0, x.rank() - 1);
  m.saved.n = n;
  m.saved.gamma = gamma.detached();
  m.y = Tensor::empty(x.shape(), x.dtype(), x.device());
  m.sum = residual.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
  m.saved.x = residual.defined() ? m.sum : x.detached();
  m.saved.mean = kRms ? Tensor() : Tensor::empty({m.saved.rows}, wide, x.device());
  m.saved.inverse = Tensor::empty({m.saved.rows}, wide, x.device());
  ledger::kernel({&x, &residual, &gamma, &beta}, {&m.y, &m.sum, &m.saved.mean, &m.saved.inverse},
                 8.0 * double(x.numel()));
  visit_float(x.dtype(), name, [&]<class T>() {
    using S = compute_t<T>;
    kernels::for_each_row(
        x.device(), m.saved.rows, n,
        Forward<T, kRms>{.y = m.y.data<T>(),
                         .sum = m.sum.defined() ? m.sum.data<T>() : nullptr,
                         .x = x.data<T>(),
                         .residual = residual.defined() ? residual.data<T>() : nullptr,
                         .gamma = gamma.data<S>(),
                         .beta = beta.defined() ? beta.data<S>() : nullptr,
                         .mean = kRms ? nullptr : m.saved.mean.data<S>(),
                         .inverse = m.saved.inverse.data<S>(),
                         .n = n,
                         .epsilon = S(epsilon)});
  });
  return m;
}

template <bool kRms>
Tensor input_gradient(const char* name, const Saved& s, const Tensor& dy, const Tensor& stream) {
  const Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
  ledger::kernel({&dy, &s.x, &stream, &s.mean, &s.inverse}, {&dx}, 12.0 * double(dy.numel()));
  visit_float(dy.dtype(), name, [&]<class T>() {
    using S = compute_t<T>;
    kernels::for_each_row(
        dy.device(), s.rows, s.n,
        InputGradient<T, kRms>{.dx = dx.data<T>(),
                               .dy = dy.data<T>(),
                               .x = s.x.data<T>(),
                               .stream = stream.defined() ? stream.data<T>() : nullptr,
                               .gamma = s.gamma.data<S>(),
                               .mean = kRms ? nullptr : s.mean.data<S>(),
                               .inverse = s.inverse.data<S>(),
                               .n = s.n});
  });
  return dx;
}

template <bool kRms>
void parameter_gradients(const char* name, Backward& b, int gamma, int beta, const Saved& s,
                         const Tensor& dy) {
  ledger::kernel({&dy, &s.x, &s.mean, &s.inverse}, {}, 5.0 * double(dy.numel()));
  visit_float(dy.dtype(), name, [&]<class T>() {
    using S = compute_t<T>;
    sum_parameters<S>(
        b, gamma, beta, dy.device(), s.rows, s.n,
        ParameterTerm<T, kRms>{dy.data<T>(), s.x.data<T>(), kRms ? nullptr : s.mean.data<S>(),
                               s.inverse.data<S>(), s.n});
  });
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon) {
  const trace::Op op("layer_norm");
  const Made m = forward<false>("layer_norm", x, Tensor(), gamma, beta, epsilon);
  return record("layer_norm", m.y, {x, gamma, beta}, [s = m.saved](Backward& b) {
    if (b.wants(0)) {
      b.set(0, input_gradient<false>("layer_norm", s, b.dy(), Tensor()));
    }
    parameter_gradients<false>("layer_norm", b, 1, 2, s, b.dy());
  });
}

ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma,
                                 const Tensor& beta, double epsilon) {
  const trace::Op op("residual_layer_norm");
  const Made m = forward<false>("residual_layer_norm", x, residual, gamma, beta, epsilon);
  auto out = record_all(
      "residual_layer_norm", {m.sum, m.y}, {x, residual, gamma, beta}, [s = m.saved](Backward& b) {
        const Tensor& stream = b.dy(0);
        const Tensor& dy = b.dy(1);
        if (!dy.defined()) {
          b.set(0, stream);
          b.set(1, stream);
          return;
        }
        if (b.wants(0) || b.wants(1)) {
          const Tensor dx = input_gradient<false>("residual_layer_norm", s, dy, stream);
          b.set(0, dx);
          b.set(1, dx);
        }
        parameter_gradients<false>("residual_layer_norm", b, 2, 3, s, dy);
      });
  return {out[0], out[1]};
}

Tensor rms_norm(const Tensor& x, const Tensor& gamma, double epsilon) {
  const trace::Op op("rms_norm");
  const Made m = forward<true>("rms_norm", x, Tensor(), gamma, Tensor(), epsilon);
  return record("rms_norm", m.y, {x, gamma}, [s = m.saved](Backward& b) {
    if (b.wants(0)) {
      b.set(0, input_gradient<true>("rms_norm", s, b.dy(), Tensor()));
    }
    parameter_gradients<true>("rms_norm", b, 1, -1, s, b.dy());
  });
}

}  // namespace penstock::ops
