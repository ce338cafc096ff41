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

  static constexpr int kPack = kernels::pack_length<T>();
  PENSTOCK_HD bool packs(i64 width) const {
    return width % kPack == 0 && kernels::pack_aligned<kPack>(x);
  }
  PENSTOCK_HD void add(i64 row, i64 c, Pair<S>* sums) const {
    using P = kernels::Pack<T, kPack>;
    const P v = *reinterpret_cast<const P*>(x + row * cols + c);
    const P pivot = *reinterpret_cast<const P*>(x + c);
    for (int k = 0; k < kPack; ++k) {
      const S d = S(load(v.v[k])) - S(load(pivot.v[k]));
      sums[k] += Pair<S>{d, d * d};
    }
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
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 c) const {
    const Pair<S> sum = sum_pairs(team, partial, chunks, cols, c);
    if (!team.leader()) {
      return;
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

// The same for kPack channels at a time: thread i keeps its channels and goes down the rows, so
// what belongs to a channel is read once.
template <class T>
struct ApplyPacks {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  static constexpr int kPack = kernels::pack_length<T>();
  Apply<T> a;
  i64 rows, groups, slices;
  PENSTOCK_HD void operator()(i64 i) const {
    using P = kernels::Pack<T, kPack>;
    const i64 c = i % groups * kPack;
    S scale[kPack];
    S shift[kPack];
    for (int k = 0; k < kPack; ++k) {
      scale[k] = a.inverse[c + k];
      shift[k] = a.mean[c + k];
    }
    S gamma[kPack];
    S beta[kPack];
    for (int k = 0; k < kPack; ++k) {
      gamma[k] = a.gamma[c + k];
      beta[k] = a.beta[c + k];
    }
    const S floor = a.relu ? S(0) : -math::infinity<S>();
    for (i64 row = i / groups; row < rows; row += slices) {
      const i64 at = row * a.cols + c;
      const P in = *reinterpret_cast<const P*>(a.x + at);
      P r = in;
      if (a.residual != nullptr) {
        r = *reinterpret_cast<const P*>(a.residual + at);
      }
      P out;
      for (int k = 0; k < kPack; ++k) {
        S v = (S(load(in.v[k])) - shift[k]) * scale[k] * gamma[k] + beta[k];
        v += a.residual != nullptr ? S(load(r.v[k])) : S(0);
        out.v[k] = store<T>(v < floor ? floor : v);
      }
      *reinterpret_cast<P*>(a.y + at) = out;
    }
  }
};

// Threads of a pack kernel: enough rows each to pay for what is read per channel.
inline i64 pack_slices(i64 rows, i64 groups) {
  const i64 most = (i64(1) << 18) / groups + 1;
  const i64 wanted = (rows + 3) / 4;
  return wanted < most ? (wanted > 0 ? wanted : 1) : most;
}

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

  static constexpr int kPack = kernels::pack_length<T>();
  PENSTOCK_HD bool packs(i64 width) const {
    return width % kPack == 0 && kernels::pack_aligned<kPack>(x) &&
           kernels::pack_aligned<kPack>(dy) && kernels::pack_aligned<kPack>(y);
  }
  PENSTOCK_HD void add(i64 row, i64 c, Pair<S>* sums) const {
    using P = kernels::Pack<T, kPack>;
    const i64 at = row * cols + c;
    const P g = *reinterpret_cast<const P*>(dy + at);
    const P v = *reinterpret_cast<const P*>(x + at);
    P out = g;
    if (y != nullptr) {
      out = *reinterpret_cast<const P*>(y + at);
    }
    for (int k = 0; k < kPack; ++k) {
      const S d = y == nullptr || load(out.v[k]) > 0 ? S(load(g.v[k])) : S(0);
      sums[k] += Pair<S>{d * (S(load(v.v[k])) - mean[c + k]) * inverse[c + k], d};
    }
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

template <class T>
struct InputGradientPacks {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  static constexpr int kPack = kernels::pack_length<T>();
  InputGradient<T> g;
  i64 slices, groups;
  PENSTOCK_HD void operator()(i64 i) const {
    using P = kernels::Pack<T, kPack>;
    const i64 c = i % groups * kPack;
    // dx = a dy + b x + d, with what belongs to the channel put together once.
    const S n = S(1) / S(g.rows);
    S gain[kPack];
    S mean[kPack];
    S hat[kPack];
    S offset[kPack];
    for (int k = 0; k < kPack; ++k) {
      gain[k] = g.gamma[c + k] * g.inverse[c + k];
      mean[k] = g.mean[c + k];
      hat[k] = g.sum_hat != nullptr ? n * g.sum_hat[c + k] * g.inverse[c + k] : S(0);
      offset[k] = g.sum_hat != nullptr ? n * g.sum[c + k] : S(0);
    }
    for (i64 row = i / groups; row < g.rows; row += slices) {
      const i64 at = row * g.cols + c;
      const P dy = *reinterpret_cast<const P*>(g.dy + at);
      const P x = *reinterpret_cast<const P*>(g.x + at);
      P y = dy;
      if (g.y != nullptr) {
        y = *reinterpret_cast<const P*>(g.y + at);
      }
      P dx;
      P beside;
      for (int k = 0; k < kPack; ++k) {
        const S d = g.y == nullptr || load(y.v[k]) > 0 ? S(load(dy.v[k])) : S(0);
        beside.v[k] = store<T>(d);
        dx.v[k] = store<T>(gain[k] * (d - offset[k] - (S(load(x.v[k])) - mean[k]) * hat[k]));
      }
      if (g.dresidual != nullptr) {
        *reinterpret_cast<P*>(g.dresidual + at) = beside;
      }
      if (g.dx != nullptr) {
        *reinterpret_cast<P*>(g.dx + at) = dx;
      }
    }
  }
};

template <class S>
struct CopyPairs {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  const Pair<S>* partial;
  S* first;
  S* second;
  i64 cols, chunks;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 c) const {
    const Pair<S> sum = sum_pairs(team, partial, chunks, cols, c);
    if (team.leader()) {
      first[c] = sum.first;
      second[c] = sum.second;
    }
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
  kernels::for_each_row(device, s.cols, chunks,
                        CopyPairs<S>{pairs, sum_hat.data<S>(), sum.data<S>(), s.cols, chunks});
  deliver<S>(b, 1, sum_hat);
  deliver<S>(b, 2, sum);
  if (!b.wants(0) && !b.wants(3)) {
    return;
  }
  const Tensor dx = b.wants(0) ? Tensor::empty(dy.shape(), dy.dtype(), device) : Tensor();
  const Tensor dresidual = b.wants(3) ? Tensor::empty(dy.shape(), dy.dtype(), device) : Tensor();
  ledger::kernel({&dy, &s.x, &s.y}, {&dx, &dresidual}, 8.0 * double(dy.numel()));
  const InputGradient<T> gradient{.dx = dx.defined() ? dx.data<T>() : nullptr,
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
                                  .cols = s.cols};
  constexpr int kPack = kernels::pack_length<T>();
  const auto aligned = [](const T* p) { return kernels::pack_aligned<kPack>(p); };
  if (device.is_cuda() && s.cols % kPack == 0 && aligned(gradient.dy) && aligned(gradient.x) &&
      aligned(gradient.y)) {
    const i64 groups = s.cols / kPack;
    const i64 slices = pack_slices(s.rows, groups);
    kernels::for_each(device, groups * slices,
                      InputGradientPacks<T>{.g = gradient, .slices = slices, .groups = groups});
  } else {
    kernels::for_each_row(device, s.rows, s.cols, gradient);
  }
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
  kernels::column_sums<Pair<S>>(x.device(), s.rows, s.cols, chunks, Moment<T>{x.data<T>(), s.cols},
                                pairs);
  const Tensor state = current_step_state(x.device());
  kernels::for_each_row(
      x.device(), s.cols, chunks,
      FinishMoments<T>{
          .partial = pairs,
          .x = x.data<T>(),
          .mean = s.mean.data<S>(),
          .inverse = s.inverse.data<S>(),
          .shadow_mean = o.shadow_mean.defined() ? o.shadow_mean.data<float>() : nullptr,
          .shadow_var = o.shadow_var.defined() ? o.shadow_var.data<float>() : nullptr,
          .state = step_state_pointer(state),
          .rows = s.rows,
          .cols = s.cols,
          .chunks = chunks,
          .epsilon = S(o.epsilon)});
}

void check_arguments(const Tensor& x, const Tensor& gamma, const Tensor& beta, const BatchNorm& o) {
  check(x.rank() >= 2 && is_float(x.dtype()), "batch_norm: {}; expected floats [N, ..., C]", x);
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const i64 c = x.dim(-1);
  check(gamma.numel() == c && beta.numel() == c && gamma.dtype() == wide && beta.dtype() == wide,
        "batch_norm: gamma {} and beta {} for {}; expected {} [{}]", gamma, beta, x, wide, c);
  check(!o.training || c == 0 || x.numel() / c != 1,
        "batch_norm: {} has one value per channel, which has no variance; use a larger batch", x);
  check(
      !o.residual.defined() || (o.residual.shape() == x.shape() && o.residual.dtype() == x.dtype()),
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
      const Apply<T> apply{.y = y.data<T>(),
                           .x = x.data<T>(),
                           .residual = o.residual.defined() ? o.residual.data<T>() : nullptr,
                           .gamma = gamma.data<S>(),
                           .beta = beta.data<S>(),
                           .mean = s.mean.data<S>(),
                           .inverse = s.inverse.data<S>(),
                           .cols = s.cols,
                           .relu = o.relu};
      constexpr int kPack = kernels::pack_length<T>();
      const auto aligned = [](const T* p) { return kernels::pack_aligned<kPack>(p); };
      if (x.device().is_cuda() && s.cols % kPack == 0 && aligned(apply.x) &&
          aligned(apply.residual)) {
        const i64 groups = s.cols / kPack;
        const i64 slices = pack_slices(s.rows, groups);
        kernels::for_each(
            x.device(), groups * slices,
            ApplyPacks<T>{.a = apply, .rows = s.rows, .groups = groups, .slices = slices});
      } else {
        kernels::for_each_row(x.device(), s.rows, s.cols, apply);
      }
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
