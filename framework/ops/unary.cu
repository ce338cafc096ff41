// A new unary op: a functor here and its line, a declaration in pointwise.h, a row in the op table
// of the tests.
#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/trace.h"
#include "framework/kernels/launch.h"
#include "framework/ops/pointwise.h"

namespace penstock::ops {
namespace {

// y(x) and its derivative; kFromOutput: slope() takes y, and x need not be kept.
struct Neg {
  static constexpr bool kFromOutput = true;
  template <class T> PENSTOCK_HD T y(T x) const { return -x; }
  template <class T> PENSTOCK_HD T slope(T /*y*/) const { return T(-1); }
};
struct Exp {
  static constexpr bool kFromOutput = true;
  template <class T> PENSTOCK_HD T y(T x) const { return math::exp(x); }
  template <class T> PENSTOCK_HD T slope(T y) const { return y; }
};
struct Log {
  static constexpr bool kFromOutput = false;
  template <class T> PENSTOCK_HD T y(T x) const { return math::log(x); }
  template <class T> PENSTOCK_HD T slope(T x) const { return T(1) / x; }
};
struct Sqrt {
  static constexpr bool kFromOutput = true;
  template <class T> PENSTOCK_HD T y(T x) const { return math::sqrt(x); }
  // An infinite slope times a zero gradient would turn a row of padding into NaN.
  template <class T> PENSTOCK_HD T slope(T y) const { return y == T(0) ? T(0) : T(0.5) / y; }
};
struct Square {
  static constexpr bool kFromOutput = false;
  template <class T> PENSTOCK_HD T y(T x) const { return x * x; }
  template <class T> PENSTOCK_HD T slope(T x) const { return T(2) * x; }
};
struct Tanh {
  static constexpr bool kFromOutput = true;
  template <class T> PENSTOCK_HD T y(T x) const { return math::tanh(x); }
  template <class T> PENSTOCK_HD T slope(T y) const { return T(1) - y * y; }
};
struct Sigmoid {
  static constexpr bool kFromOutput = true;
  template <class T> PENSTOCK_HD T y(T x) const { return math::sigmoid(x); }
  template <class T> PENSTOCK_HD T slope(T y) const { return y * (T(1) - y); }
};
struct Relu {
  static constexpr bool kFromOutput = true;
  template <class T> PENSTOCK_HD T y(T x) const { return x > T(0) ? x : T(0) * x; }
  template <class T> PENSTOCK_HD T slope(T y) const { return y > T(0) ? T(1) : T(0); }
};
struct Gelu {
  static constexpr bool kFromOutput = false;
  template <class T> PENSTOCK_HD T y(T x) const { return math::gelu_erf(x); }
  template <class T> PENSTOCK_HD T slope(T x) const { return math::gelu_erf_grad(x); }
};
struct GeluTanh {
  static constexpr bool kFromOutput = false;
  template <class T> PENSTOCK_HD T y(T x) const { return math::gelu_tanh(x); }
  template <class T> PENSTOCK_HD T slope(T x) const { return math::gelu_tanh_grad(x); }
};
struct Silu {
  static constexpr bool kFromOutput = false;
  template <class T> PENSTOCK_HD T y(T x) const { return math::silu(x); }
  template <class T> PENSTOCK_HD T slope(T x) const { return math::silu_grad(x); }
};
struct Scale {
  static constexpr bool kFromOutput = true;
  double factor;
  template <class T> PENSTOCK_HD T y(T x) const { return x * T(factor); }
  template <class T> PENSTOCK_HD T slope(T /*y*/) const { return T(factor); }
};
struct AddScalar {
  static constexpr bool kFromOutput = true;
  double value;
  template <class T> PENSTOCK_HD T y(T x) const { return x + T(value); }
  template <class T> PENSTOCK_HD T slope(T /*y*/) const { return T(1); }
};

template <class F>
struct Forward {
  F f;
  template <class T> PENSTOCK_HD T operator()(T x) const { return f.y(x); }
};
template <class F>
struct Gradient {
  F f;
  template <class T> PENSTOCK_HD T operator()(T dy, T saved) const { return dy * f.slope(saved); }
};

template <class F>
Tensor unary(const char* name, const Tensor& x, const F& f) {
  const trace::Op op(name);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  ledger::kernel({&x}, {&y}, double(x.numel()));
  visit_float(x.dtype(), name, [&]<class T>() {
    kernels::map(x.device(), x.numel(), Forward<F>{f}, y.data<T>(), x.data<T>());
  });
  const Tensor saved = F::kFromOutput ? y : x.detached();
  return record(name, y, {x}, [f, saved, name](Backward& b) {
    const Tensor& dy = b.dy();
    const Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
    ledger::kernel({&dy, &saved}, {&dx}, 2.0 * double(dy.numel()));
    visit_float(dy.dtype(), name, [&]<class T>() {
      kernels::map(dy.device(), dy.numel(), Gradient<F>{f}, dx.data<T>(), dy.data<T>(),
                   saved.data<T>());
    });
    b.set(0, dx);
  });
}

Tensor wide(const Tensor& x) { return std::get<0>(amp::prepare(amp::Cast::kFloat32, x)); }

}  // namespace

Tensor neg(const Tensor& x) { return unary("neg", x, Neg{}); }
Tensor exp(const Tensor& x) { return unary("exp", wide(x), Exp{}); }
Tensor log(const Tensor& x) { return unary("log", wide(x), Log{}); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", x, Sqrt{}); }
Tensor square(const Tensor& x) { return unary("square", x, Square{}); }
Tensor tanh(const Tensor& x) { return unary("tanh", x, Tanh{}); }
Tensor sigmoid(const Tensor& x) { return unary("sigmoid", x, Sigmoid{}); }
Tensor relu(const Tensor& x) { return unary("relu", x, Relu{}); }
Tensor gelu(const Tensor& x) { return unary("gelu", x, Gelu{}); }
Tensor gelu_tanh(const Tensor& x) { return unary("gelu_tanh", x, GeluTanh{}); }
Tensor silu(const Tensor& x) { return unary("silu", x, Silu{}); }
Tensor scale(const Tensor& x, double factor) { return unary("scale", x, Scale{factor}); }
Tensor add_scalar(const Tensor& x, double value) {
  return unary("add_scalar", x, AddScalar{value});
}

Tensor cast(const Tensor& x, DType dtype) { return amp::cast(x, dtype); }

}  // namespace penstock::ops
