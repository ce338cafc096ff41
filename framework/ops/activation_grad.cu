#include "framework/ops/activation_grad.h"

#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/kernels/launch.h"

namespace penstock::ops {
namespace {

struct ReluGradient {
  template <class T>
  PENSTOCK_HD T operator()(T dy, T y) const {
    return y > T(0) ? dy : T(0);
  }
};
struct GeluGradient {
  template <class T>
  PENSTOCK_HD T operator()(T dy, T x) const {
    return dy * math::gelu_tanh_grad(x);
  }
};

template <class F>
Tensor gradient(const char* op, const Tensor& dy, const Tensor& saved, const F& f) {
  check(dy.numel() == saved.numel() && dy.dtype() == saved.dtype(), "{}: gradient {} for {}", op,
        dy, saved);
  const Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
  ledger::kernel({&dy, &saved}, {&dx}, double(dy.numel()));
  visit_float(dy.dtype(), op, [&]<class T>() {
    kernels::map(dy.device(), dy.numel(), f, dx.data<T>(), dy.data<T>(), saved.data<T>());
  });
  return dx;
}

}  // namespace

Tensor relu_gradient(const Tensor& dy, const Tensor& y) {
  return gradient("relu", dy, y, ReluGradient{});
}
Tensor gelu_gradient(const Tensor& dy, const Tensor& x) {
  return gradient("gelu", dy, x, GeluGradient{});
}

}  // namespace penstock::ops
