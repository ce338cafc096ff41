// Losses between two tensors of one shape, element by element.
#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/step_state.h"
#include "framework/core/trace.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/launch.h"
#include "framework/ops/loss.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/reduce.h"

namespace penstock::ops {
namespace {

struct Mse {
  template <class T> PENSTOCK_HD T loss(T x, T t) const { return (x - t) * (x - t); }
  template <class T> PENSTOCK_HD T slope(T x, T t) const { return T(2) * (x - t); }
};
struct Bce {
  // max(x, 0) - x t + log(1 + exp(-|x|)).
  template <class T> PENSTOCK_HD T loss(T x, T t) const {
    return (x > T(0) ? x : T(0)) - x * t + math::log1p(math::exp(-math::abs(x)));
  }
  template <class T> PENSTOCK_HD T slope(T x, T t) const { return math::sigmoid(x) - t; }
};

template <class F>
struct Loss {
  F f;
  template <class T> PENSTOCK_HD T operator()(T x, T t) const { return f.loss(x, t); }
};
template <class F, bool kNegative>
struct Slope {
  F f;
  template <class G, class T>
  PENSTOCK_HD auto operator()(G dy, T x, T t) const {
    const auto s = f.slope(x, t) * dy;
    return kNegative ? -s : s;
  }
};

template <class F>
Tensor pair_loss(const char* name, const Tensor& x, const Tensor& t, Reduction r, const F& f) {
  const trace::Op op(name);
  check(x.shape() == t.shape() && x.dtype() == t.dtype(),
        "{}: prediction {} and target {} must have one shape and dtype; reshape one of them", name,
        x, t);
  check(is_float(x.dtype()), "{}: dtype {} is not supported; expected a float dtype", name,
        x.dtype());
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor each = Tensor::empty(x.shape(), wide, x.device());
  ledger::kernel({&x, &t}, {&each}, 4.0 * double(x.numel()));
  visit_float(x.dtype(), name, [&]<class T>() {
    kernels::map(x.device(), x.numel(), Loss<F>{f}, each.data<compute_t<T>>(), x.data<T>(),
                 t.data<T>());
  });
  const Tensor rows = record(
      name, each, {x, t}, [f, name, x = x.detached(), t = t.detached()](Backward& b) {
        const auto gradient = [&]<bool kNegative>() {
          const Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
          ledger::kernel({&b.dy(), &x, &t}, {&dx}, 4.0 * double(x.numel()));
          visit_float(x.dtype(), name, [&]<class T>() {
            kernels::map(x.device(), x.numel(), Slope<F, kNegative>{f}, dx.data<T>(),
                         b.dy().data<compute_t<T>>(), x.data<T>(), t.data<T>());
          });
          return dx;
        };
        if (b.wants(0)) {
          b.set(0, gradient.template operator()<false>());
        }
        if (b.wants(1)) {
          b.set(1, gradient.template operator()<true>());
        }
      });
  switch (r) {
    case Reduction::kNone: return rows;
    case Reduction::kMean: return mean(rows);
    case Reduction::kSum: return sum(rows);
    case Reduction::kStep: {
      const Tensor total = sum(rows);
      return record("loss_seed", total.detached(), {total}, [](Backward& b) {
        const Tensor seed = step_state_field(current_step_state(b.dy().device()), &StepState::seed);
        b.set(0, kernels::scaled(b.dy(), seed));
      });
    }
  }
  return rows;
}

}  // namespace

Tensor mse(const Tensor& prediction, const Tensor& target, Reduction reduction) {
  return pair_loss("mse", prediction, target, reduction, Mse{});
}

Tensor bce_with_logits(const Tensor& logits, const Tensor& target, Reduction reduction) {
  return pair_loss("bce_with_logits", logits, target.detached(), reduction, Bce{});
}

}  // namespace penstock::ops
