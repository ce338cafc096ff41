#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/trace.h"
#include "framework/kernels/broadcast.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/shape_ops.h"

namespace penstock::ops {
namespace {

// y(a, b) and its partial derivatives.
struct Add {
  template <class T> PENSTOCK_HD T y(T a, T b) const { return a + b; }
};
struct Sub {
  template <class T> PENSTOCK_HD T y(T a, T b) const { return a - b; }
};
struct Mul {
  template <class T> PENSTOCK_HD T y(T a, T b) const { return a * b; }
  template <class T> PENSTOCK_HD T da(T /*a*/, T b) const { return b; }
  template <class T> PENSTOCK_HD T db(T a, T /*b*/) const { return a; }
};
struct Div {
  template <class T> PENSTOCK_HD T y(T a, T b) const { return a / b; }
  template <class T> PENSTOCK_HD T da(T /*a*/, T b) const { return T(1) / b; }
  template <class T> PENSTOCK_HD T db(T a, T b) const { return -a / (b * b); }
};
struct Pow {
  template <class T> PENSTOCK_HD T y(T a, T b) const { return math::pow(a, b); }
  template <class T> PENSTOCK_HD T da(T a, T b) const {
    return b == T(0) ? T(0) : b * math::pow(a, b - T(1));
  }
  template <class T> PENSTOCK_HD T db(T a, T b) const {
    return a == T(0) ? T(0) : math::pow(a, b) * math::log(a);
  }
};
struct Maximum {
  template <class T> PENSTOCK_HD T y(T a, T b) const { return a > b || a != a ? a : b; }
  template <class T> PENSTOCK_HD T da(T a, T b) const {
    return a > b ? T(1) : a == b ? T(0.5) : T(0);
  }
  template <class T> PENSTOCK_HD T db(T a, T b) const { return T(1) - da(a, b); }
};
struct Minimum {
  template <class T> PENSTOCK_HD T y(T a, T b) const { return a < b || a != a ? a : b; }
  template <class T> PENSTOCK_HD T da(T a, T b) const {
    return a < b ? T(1) : a == b ? T(0.5) : T(0);
  }
  template <class T> PENSTOCK_HD T db(T a, T b) const { return T(1) - da(a, b); }
};

template <class F>
struct Forward {
  F f;
  template <class T> PENSTOCK_HD T operator()(T a, T b) const { return f.y(a, b); }
};
template <class F>
struct SlopeA {
  F f;
  template <class T> PENSTOCK_HD T operator()(T a, T b) const { return f.da(a, b); }
};
template <class F>
struct SlopeB {
  F f;
  template <class T> PENSTOCK_HD T operator()(T a, T b) const { return f.db(a, b); }
};
struct Times {
  template <class T> PENSTOCK_HD T operator()(T a, T b) const { return a * b; }
};

struct Prepared {
  Tensor a, b;
  Shape shape;
};
Prepared prepare(const char* name, amp::Cast c, const Tensor& a, const Tensor& b) {
  Prepared p;
  std::tie(p.a, p.b) = amp::prepare(c, a, b);
  check(p.a.dtype() == p.b.dtype(), "{}: dtypes {} and {} do not meet", name, a.dtype(),
        b.dtype());
  check(p.a.device() == p.b.device(), "{}: operands on {} and {}", name, a.device(), b.device());
  p.shape = broadcast(a.shape(), b.shape(), name);
  return p;
}

template <class F>
Tensor apply(const char* name, const Shape& shape, const Tensor& a, const Tensor& b, const F& f) {
  const Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  ledger::kernel({&a, &b}, {&y}, double(y.numel()));
  visit_float(a.dtype(), name,
              [&]<class T>() { kernels::map_broadcast<T, T, T>(y, a, b, f); });
  return y;
}

// dy times a slope of the operands. Two launches keep the slope in the compute type's precision
// only for f32 and f64; the product is the same operation either way.
template <class F>
Tensor chain(const char* name, const Tensor& dy, const Tensor& a, const Tensor& b, const F& slope) {
  const Tensor s = apply(name, dy.shape(), a, b, slope);
  return apply(name, dy.shape(), dy, s, Times{});
}

template <class F>
Tensor binary(const char* name, const Tensor& a_, const Tensor& b_, const F& f,
              amp::Cast c = amp::Cast::kPromote) {
  const trace::Op op(name);
  const Prepared p = prepare(name, c, a_, b_);
  const Tensor y = apply(name, p.shape, p.a, p.b, Forward<F>{f});
  const Tensor a = p.a.detached();
  const Tensor b = p.b.detached();
  return record(name, y, {p.a, p.b}, [f, a, b, name](Backward& back) {
    if (back.wants(0)) {
      back.set(0, chain(name, back.dy(), a, b, SlopeA<F>{f}));
    }
    if (back.wants(1)) {
      back.set(1, chain(name, back.dy(), a, b, SlopeB<F>{f}));
    }
  });
}

struct Equal {
  template <class T> PENSTOCK_HD bool operator()(T a, T b) const { return a == b; }
};
struct Less {
  template <class T> PENSTOCK_HD bool operator()(T a, T b) const { return a < b; }
};
struct LessEqual {
  template <class T> PENSTOCK_HD bool operator()(T a, T b) const { return a <= b; }
};

template <class F>
Tensor compare(const char* name, const Tensor& a, const Tensor& b, const F& f) {
  const trace::Op op(name);
  check(a.dtype() == b.dtype(), "{}: dtypes {} and {} differ", name, a.dtype(), b.dtype());
  const Tensor y =
      Tensor::empty(broadcast(a.shape(), b.shape(), name), DType::boolean, a.device());
  ledger::kernel({&a, &b}, {&y}, double(y.numel()));
  visit_any(a.dtype(), [&]<class T>() { kernels::map_broadcast<bool, T, T>(y, a, b, f); });
  return y;
}

struct Choose {
  template <class T> PENSTOCK_HD T operator()(bool c, T a, T b) const { return c ? a : b; }
};
struct KeepIf {
  bool when;
  template <class T> PENSTOCK_HD T operator()(bool c, T dy) const { return c == when ? dy : T(0); }
};

}  // namespace

Tensor add(const Tensor& a_, const Tensor& b_) {
  const trace::Op op("add");
  const Prepared p = prepare("add", amp::Cast::kPromote, a_, b_);
  const Tensor y = apply("add", p.shape, p.a, p.b, Forward<Add>{});
  return record("add", y, {p.a, p.b}, [](Backward& b) {
    b.set(0, b.dy());
    b.set(1, b.dy());
  });
}

Tensor sub(const Tensor& a_, const Tensor& b_) {
  const trace::Op op("sub");
  const Prepared p = prepare("sub", amp::Cast::kPromote, a_, b_);
  const Tensor y = apply("sub", p.shape, p.a, p.b, Forward<Sub>{});
  return record("sub", y, {p.a, p.b}, [](Backward& b) {
    b.set(0, b.dy());
    if (b.wants(1)) {
      b.set(1, neg(b.dy()));
    }
  });
}

Tensor mul(const Tensor& a, const Tensor& b) { return binary("mul", a, b, Mul{}); }
Tensor div(const Tensor& a, const Tensor& b) { return binary("div", a, b, Div{}); }
Tensor pow(const Tensor& a, const Tensor& b) {
  return binary("pow", a, b, Pow{}, amp::Cast::kFloat32);
}
Tensor maximum(const Tensor& a, const Tensor& b) { return binary("maximum", a, b, Maximum{}); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary("minimum", a, b, Minimum{}); }

Tensor equal(const Tensor& a, const Tensor& b) { return compare("equal", a, b, Equal{}); }
Tensor less(const Tensor& a, const Tensor& b) { return compare("less", a, b, Less{}); }
Tensor less_equal(const Tensor& a, const Tensor& b) {
  return compare("less_equal", a, b, LessEqual{});
}
Tensor greater(const Tensor& a, const Tensor& b) { return compare("greater", b, a, Less{}); }
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return compare("greater_equal", b, a, LessEqual{});
}

Tensor where(const Tensor& condition, const Tensor& a_, const Tensor& b_) {
  const trace::Op op("where");
  check(condition.dtype() == DType::boolean, "where: condition {}; expected bool", condition);
  const Prepared p = prepare("where", amp::Cast::kPromote, a_, b_);
  const Shape shape = broadcast(p.shape, condition.shape(), "where");
  const Tensor c = expand(condition, shape);
  const Tensor a = expand(p.a, shape);
  const Tensor b = expand(p.b, shape);
  const Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  ledger::kernel({&c, &a, &b}, {&y}, double(y.numel()));
  visit_any(a.dtype(), [&]<class T>() {
    kernels::map(y.device(), y.numel(), Choose{}, y.data<T>(), c.data<bool>(), a.data<T>(),
                 b.data<T>());
  });
  return record("where", y, {a, b}, [c](Backward& back) {
    const Tensor& dy = back.dy();
    for (const int i : {0, 1}) {
      if (!back.wants(i)) {
        continue;
      }
      const Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
      ledger::kernel({&c, &dy}, {&dx}, double(dx.numel()));
      visit_float(dy.dtype(), "where", [&]<class T>() {
        kernels::map(dy.device(), dy.numel(), KeepIf{i == 0}, dx.data<T>(), c.data<bool>(),
                     dy.data<T>());
      });
      back.set(i, dx);
    }
  });
}

}  // namespace penstock::ops
