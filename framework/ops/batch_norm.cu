#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/step_state.h"
#include "framework/core/trace.h"
#include "framework/kernels/rows.h"
#include "framework/ops/norm.h"
#include "framework/ops/parameter_sums.h"

namespace penstock::ops {
namespace {

using kernels::load;
using kernels::store;

// Sums of (x - pivot) and its square, pivot = the channel's first value: the variance of values far
// from 0 survives the subtraction of two large numbers.
template <class T>
struct Moment {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const T* x;
  i64 cols;
  PENSTOCK_HD Pair<S> operator()(i64 row, i64 c) const {
    const S d = S(load(x[row * cols + c])) - S(load(x[c]));
    return {d, d * d};
  }
};

template <class T>
struct FinishMoments {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const Pair<S>* partial;
  const T* x;
  S* mean;
  S* inverse;
  float* shadow_mean;  // null: none kept
  float* shadow_var;
  const StepState* state;
  i64 rows, cols, chunks;
  S epsilon;
  PENSTOCK_HD void operator()(i64 c) const {
    Pair<S> sum{};
    for (i64 k = 0; k < chunks; ++k) {
      sum += partial[k * cols + c];
    }
    const S n = S(rows);
    const S shift = sum.first / n;
    const S var_raw = sum.second / n - shift * shift;
    const S var = var_raw > S(0) ? var_raw : S(0);
    mean[c] = shift + S(load(x[c]));
    inverse[c] = S(1) / math::sqrt(var + epsilon);
    if (shadow_mean != nullptr) {
      const float m = state->in.norm_momentum;
      const float unbiased = float(var * n / (n - S(1)));
      shadow_mean[c] = (1 - m) * shadow_mean[c] + m * float(mean[c]);
      shadow_var[c] = (1 - m) * shadow_var[c] + m * unbiased;
    }
  }
};

// Running statistics as the forward pass of evaluation needs them.
template <class S>
struct FromRunning {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  const float* running_mean;
  const float* running_var;
  S* mean;
  S* inverse;
  S epsilon;
  PENSTOCK_HD void operator()(i64 c) const {
    mean[c] = S(running_mean[c]);
    inverse[c] = S(1) / math::sqrt(S(running_var[c]) + epsilon);
  }
};

template <class T>
struct Apply {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* y;
  const T* x;
  const T* residual;
  const S* gamma;
  const S* beta;
  const S* mean;
  const S* inverse;
  i64 cols;
  bool relu;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const T* in = x + row * cols;
    T* out = y + row * cols;
    const T* r = residual != nullptr ? residual + row * cols : nullptr;
    const S floor = relu ? S(0) : -math::infinity<S>();
    if (r != nullptr) {
      team.each(cols, [&](i64 c) {
        const S v = (S(load(in[c])) - mean[c]) * inverse[c] * gamma[c] + beta[c] + S(load(r[c]));
        out[c] = store<T>(v < floor ? floor : v);
      });
    } else {
      team.each(cols, [&](i64 c) {
        const S v = (S(load(in[c])) - mean[c]) * inverse[c] * gamma[c] + beta[c];
        out[c] = store<T>(v < floor ? floor : v);
      });
    }
  }
};

// dy behind the ReLU; y is its output, null without one.
template <class T>
PENSTOCK_HD compute_t<T> upstream(const T* dy, const T* y, i64 i) {
  using S = compute_t<T>;
  return y == nullptr || load(y[i]) > 0 ? S(load(dy[i])) : S(0);
}

template <class T>
struct GradientTerm {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const T* dy;
  const T* y;
  const T* x;
  const S* mean;
  const S* inverse;
  i64 cols;
  PENSTOCK_HD Pair<S> operator()(i64 row, i64 c) const {
    const S g = upstream(dy, y, row * cols + c);
    return {g * (S(load(x[row * cols + c])) - mean[c]) * inverse[c], g};
  }
};

template <class T>
struct InputGradient {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* dx;         // null when only the residual wants a gradient
  T* dresidual;  // null: none
  const T* dy;
  const T* y;
  const T* x;
  const S* gamma;
  const S* mean;
  const S* inverse;
  const S* sum_hat;  // of this batch; null when statistics were constants
  const S* sum;
  i64 rows, cols;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const i64 at = row * cols;
    const S n = S(1) / S(rows);
    if (dresidual != nullptr) {
      team.each(cols, [&](i64 c) { dresidual[at + c] = store<T>(upstream(dy, y, at + c)); });
    }
    if (dx == nullptr) {
      return;
    }
    if (sum_hat == nullptr) {
      team.each(cols, [&](i64 c) {
        dx[at + c] = store<T>(upstream(dy, y, at + c) * gamma[c] * inverse[c]);
      });
      return;
    }
    team.each(cols, [&](i64 c) {
      const S g = upstream(dy, y, at + c);
      const S hat = (S(load(x[at + c])) - mean[c]) * inverse[c];
      dx[at + c] = store<T>(gamma[c] * inverse[c] * (g - n * sum[c] - hat * n * sum_hat[c]));
    });
  }
};

template <class S>
struct CopyPairs {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  const Pair<S>* partial;
  S* first;
  S* second;
  i64 cols, chunks;
  PENSTOCK_HD void operator()(i64 c) const {
    Pair<S> sum{};
    for (i64 k = 0; k < chunks; ++k) {
      sum += partial[k * cols + c];
    }
    first[c] = sum.first;
    second[c] = sum.second;
  }
};

template <class S>
struct AddTo {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  S* to;
  const S* from;
  S beta;
  PENSTOCK_HD void operator()(i64 c) const {
    to[c] = from[c] + (beta != S(0) ? beta * to[c] : S(0));
  }
};

struct Saved {
  Tensor x, y, gamma, mean, inverse;
  i64 rows = 0;
  i64 cols = 0;
  bool training = true;
};

template <class S>
void deliver(Backward& b, int input, const Tensor& value) {
  if (!b.wants(input)) {
    return;
  }
  if (b.has_sink(input)) {
    const Sink sink = b.sink(input);
    kernels::for_each(value.device(), value.numel(),
                      AddTo<S>{sink.grad.data<S>(), value.data<S>(), S(sink.beta)});
  } else {
    b.set(input, value);
  }
}

template <class T>
void backward(Backward& b, const Saved& s) {
  using S = compute_t<T>;
  const Tensor& dy = b.dy();
  const Device device = dy.device();
  const T* y = s.y.defined() ? s.y.data<T>() : nullptr;
  const i64 chunks = kernels::column_chunks(s.rows, s.cols);
  const Tensor partial =
      Tensor::empty({chunks, s.cols, 2}, dtype_of<S>, device, MemoryClass::kWorkspace);
  auto* pairs = reinterpret_cast<Pair<S>*>(partial.data<S>());
  const Tensor sum_hat = Tensor::empty({s.cols}, dtype_of<S>, device);
  const Tensor sum = Tensor::empty({s.cols}, dtype_of<S>, device);
  ledger::kernel({&dy, &s.x, &s.y}, {&sum_hat, &sum}, 6.0 * double(dy.numel()));
  kernels::column_sums<Pair<S>>(device, s.rows, s.cols, chunks,
                                GradientTerm<T>{dy.data<T>(), y, s.x.data<T>(), s.mean.data<S>(),
                                                s.inverse.data<S>(), s.cols},
                                pairs);
  kernels::for_each(device, s.cols,
                    CopyPairs<S>{pairs, sum_hat.data<S>(), sum.data<S>(), s.cols, chunks},
                    kernels::kGrain / chunks + 1);
  deliver<S>(b, 1, sum_hat);
  deliver<S>(b, 2, sum);
  if (!b.wants(0) && !b.wants(3)) {
    return;
  }
  const Tensor dx = b.wants(0) ? Tensor::empty(dy.shape(), dy.dtype(), device) : Tensor();
  const Tensor dresidual = b.wants(3) ? Tensor::empty(dy.shape(), dy.dtype(), device) : Tensor();
  ledger::kernel({&dy, &s.x, &s.y}, {&dx, &dresidual}, 8.0 * double(dy.numel()));
  kernels::for_each_row(
      device, s.rows, s.cols,
      InputGradient<T>{.dx = dx.defined() ? dx.data<T>() : nullptr,
                       .dresidual = dresidual.defined() ? dresidual.data<T>() : nullptr,
                       .dy = dy.data<T>(),
                       .y = y,
                       .x = s.x.data<T>(),
                       .gamma = s.gamma.data<S>(),
                       .mean = s.mean.data<S>(),
                       .inverse = s.inverse.data<S>(),
                       .sum_hat = s.training ? sum_hat.data<S>() : nullptr,
                       .sum = sum.data<S>(),
                       .rows = s.rows,
                       .cols = s.cols});
  if (dx.defined()) {
    b.set(0, dx);
  }
  if (dresidual.defined()) {
    b.set(3, dresidual);
  }
}

template <class T>
void statistics(const Tensor& x, const Saved& s, const BatchNorm& o) {
  using S = compute_t<T>;
  if (!o.training) {
    ledger::kernel({&o.running_mean, &o.running_var}, {&s.mean, &s.inverse});
    kernels::for_each(x.device(), s.cols,
                      FromRunning<S>{o.running_mean.data<float>(), o.running_var.data<float>(),
                                     s.mean.data<S>(), s.inverse.data<S>(), S(o.epsilon)});
    return;
  }
  const i64 chunks = kernels::column_chunks(s.rows, s.cols);
  const Tensor partial =
      Tensor::empty({chunks, s.cols, 2}, dtype_of<S>, x.device(), MemoryClass::kWorkspace);
  auto* pairs = reinterpret_cast<Pair<S>*>(partial.data<S>());
  ledger::kernel({&x}, {&s.mean, &s.inverse}, 3.0 * double(x.numel()));
  kernels::column_sums<Pair<S>>(x.device(), s.rows, s.cols, chunks,
                                Moment<T>{x.data<T>(), s.cols}, pairs);
  const Tensor state = current_step_state(x.device());
  kernels::for_each(
      x.device(), s.cols,
      FinishMoments<T>{.partial = pairs,
                       .x = x.data<T>(),
                       .mean = s.mean.data<S>(),
                       .inverse = s.inverse.data<S>(),
                       .shadow_mean = o.shadow_mean.defined() ? o.shadow_mean.data<float>() : nullptr,
                       .shadow_var = o.shadow_var.defined() ? o.shadow_var.data<float>() : nullptr,
                       .state = step_state_pointer(state),
                       .rows = s.rows,
                       .cols = s.cols,
                       .chunks = chunks,
                       .epsilon = S(o.epsilon)},
      kernels::kGrain / chunks + 1);
}

void check_arguments(const Tensor& x, const Tensor& gamma, const Tensor& beta, const BatchNorm& o) {
  check(x.rank() >= 2 && is_float(x.dtype()), "batch_norm: {}; expected floats [N, ..., C]", x);
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const i64 c = x.dim(-1);
  check(gamma.numel() == c && beta.numel() == c && gamma.dtype() == wide && beta.dtype() == wide,
        "batch_norm: gamma {} and beta {} for {}; expected {} [{}]", gamma, beta, x, wide, c);
  check(!o.training || c == 0 || x.numel() / c != 1,
        "batch_norm: {} has one value per channel, which has no variance; use a larger batch", x);
  check(!o.residual.defined() ||
            (o.residual.shape() == x.shape() && o.residual.dtype() == x.dtype()),
        "batch_norm: residual {} for {}", o.residual, x);
  check(o.training || (o.running_mean.defined() && o.running_var.defined()),
        "batch_norm: evaluation needs running statistics");
}

}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, const BatchNorm& o) {
  const trace::Op op("batch_norm");
  check_arguments(x, gamma, beta, o);
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Saved s;
  s.cols = x.dim(-1);
  s.rows = s.cols > 0 ? x.numel() / s.cols : 0;
  s.x = x.detached();
  s.gamma = gamma.detached();
  s.training = o.training;
  s.mean = Tensor::empty({s.cols}, wide, x.device());
  s.inverse = Tensor::empty({s.cols}, wide, x.device());
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (s.rows > 0) {
    visit_float(x.dtype(), "batch_norm", [&]<class T>() {
      using S = compute_t<T>;
      statistics<T>(x, s, o);
      ledger::kernel({&x, &o.residual}, {&y}, 4.0 * double(x.numel()));
      kernels::for_each_row(
          x.device(), s.rows, s.cols,
          Apply<T>{.y = y.data<T>(),
                   .x = x.data<T>(),
                   .residual = o.residual.defined() ? o.residual.data<T>() : nullptr,
                   .gamma = gamma.data<S>(),
                   .beta = beta.data<S>(),
                   .mean = s.mean.data<S>(),
                   .inverse = s.inverse.data<S>(),
                   .cols = s.cols,
                   .relu = o.relu});
    });
  }
  if (o.relu) {
    s.y = y;
  }
  return record("batch_norm", y, {x, gamma, beta, o.residual}, [s](Backward& b) {
    visit_float(s.x.dtype(), "batch_norm", [&]<class T>() { backward<T>(b, s); });
  });
}

}  // namespace penstock::ops
