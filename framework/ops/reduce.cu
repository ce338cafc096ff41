#include "framework/ops/reduce.h"

#include <algorithm>

#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/trace.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/rows.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/shape_ops.h"

namespace penstock::ops {
namespace {

// Which axes go, as flags; all of them for an empty list.
std::vector<bool> reduced_axes(const Tensor& x, const std::vector<int>& axes, const char* name) {
  std::vector<bool> flags(static_cast<std::size_t>(x.rank()), axes.empty());
  for (const int a : axes) {
    const auto axis = std::size_t(x.shape().axis(a, name));
    check(!flags[axis], "{}: axis {} appears twice", name, a);
    flags[axis] = true;
  }
  return flags;
}

Tensor sum_axes(const Tensor& x, const std::vector<bool>& flags, bool keep, double scale) {
  const DType dtype = is_float(x.dtype()) ? x.dtype() : DType::i64;
  Tensor y = x;
  Shape kept = x.shape();
  i64 outer = 1;
  bool any = false;
  for (int axis = 0; axis < x.rank();) {
    if (!flags[std::size_t(axis)]) {
      outer *= x.dim(axis++);
      continue;
    }
    i64 n = 1;
    while (axis < x.rank() && flags[std::size_t(axis)]) {
      n *= x.dim(axis);
      kept = kept.with(axis++, 1);
    }
    y = kernels::sum_middle(y, outer, n, x.shape().numel(axis, x.rank()), dtype,
                            any ? 1.0 : scale);
    any = true;
  }
  if (!any) {  // nothing to add up, but the result is a new tensor of the result dtype
    y = kernels::sum_middle(x, x.numel(), 1, 1, dtype, scale);
  }
  Shape shape = kept;
  if (!keep) {
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      if (flags[std::size_t(axis)]) {
        shape = shape.without(axis);
      }
    }
  }
  return y.view(shape);
}

Shape keep_shape(const Shape& shape, const std::vector<bool>& flags) {
  Shape kept = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (flags[std::size_t(axis)]) {
      kept = kept.with(axis, 1);
    }
  }
  return kept;
}

// First largest element of [outer, n, inner] for each (outer, inner).
template <class T>
struct Largest {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* value;
  std::int64_t* index;
  const T* x;
  i64 n, inner;
  PENSTOCK_HD void operator()(i64 i) const {
    const T* column = x + (i / inner) * n * inner + i % inner;
    auto best = kernels::load(column[0]);
    i64 at = 0;
    for (i64 k = 1; k < n; ++k) {
      const auto v = kernels::load(column[k * inner]);
      // best == best fails for NaN, which then stays.
      if (best == best && (v > best || v != v)) {
        best = v;
        at = k;
      }
    }
    value[i] = column[at * inner];
    index[i] = at;
  }
};

template <class T>
struct SpreadMax {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* dx;  // zero before
  const T* dy;
  const std::int64_t* index;
  i64 n, inner;
  PENSTOCK_HD void operator()(i64 i) const {
    dx[((i / inner) * n + index[i]) * inner + i % inner] = dy[i];
  }
};

struct MaxResult {
  Tensor value, index;
};

MaxResult largest(const char* name, const Tensor& x, int axis) {
  const i64 n = x.dim(axis);
  check(n > 0, "{}: axis {} of {} has no elements", name, axis, x);
  const i64 inner = x.shape().numel(axis + 1, x.rank());
  MaxResult r{Tensor::empty(x.shape().with(axis, 1), x.dtype(), x.device()),
              Tensor::empty(x.shape().with(axis, 1), DType::i64, x.device())};
  ledger::kernel({&x}, {&r.value, &r.index}, double(x.numel()));
  visit_any(x.dtype(), [&]<class T>() {
    kernels::for_each(x.device(), r.value.numel(),
                      Largest<T>{r.value.data<T>(), r.index.data<std::int64_t>(), x.data<T>(), n,
                                 inner},
                      kernels::kGrain / n + 1);
  });
  return r;
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& axes, bool keep) {
  const trace::Op op("sum");
  const auto flags = reduced_axes(x, axes, "sum");
  return record("sum", sum_axes(x, flags, keep, 1), {x},
                [shape = x.shape(), kept = keep_shape(x.shape(), flags)](Backward& b) {
                  b.set(0, expand(b.dy().view(kept), shape));
                });
}

Tensor mean(const Tensor& x, const std::vector<int>& axes, bool keep) {
  const trace::Op op("mean");
  check(is_float(x.dtype()), "mean: dtype {} is not supported; expected a float dtype", x.dtype());
  const auto flags = reduced_axes(x, axes, "mean");
  i64 n = 1;
  for (int axis = 0; axis < x.rank(); ++axis) {
    n *= flags[std::size_t(axis)] ? x.dim(axis) : 1;
  }
  const double scale = n > 0 ? 1.0 / double(n) : math::infinity<double>();
  return record("mean", sum_axes(x, flags, keep, scale), {x},
                [shape = x.shape(), kept = keep_shape(x.shape(), flags), scale](Backward& b) {
                  b.set(0, expand(ops::scale(b.dy(), scale).view(kept), shape));
                });
}

Tensor max(const Tensor& x, int axis_, bool keep) {
  const trace::Op op("max");
  check(is_float(x.dtype()), "max: dtype {} is not supported; expected a float dtype", x.dtype());
  const int axis = x.shape().axis(axis_, "max");
  const MaxResult r = largest("max", x, axis);
  const Tensor y = keep ? r.value : r.value.view(r.value.shape().without(axis));
  return record("max", y, {x}, [index = r.index, shape = x.shape(), axis](Backward& b) {
    const Tensor& dy = b.dy();
    const Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
    ledger::kernel({&dy, &index}, {});
    ledger::bytes(dx.memory_class(), 0, double(dy.bytes()));
    visit_float(dy.dtype(), "max", [&]<class T>() {
      kernels::for_each(dy.device(), dy.numel(),
                        SpreadMax<T>{dx.data<T>(), dy.data<T>(), index.data<std::int64_t>(),
                                     shape[axis], shape.numel(axis + 1, shape.rank())});
    });
    b.set(0, dx);
  });
}

Tensor argmax(const Tensor& x, int axis_, bool keep) {
  const trace::Op op("argmax");
  const int axis = x.shape().axis(axis_, "argmax");
  const MaxResult r = largest("argmax", x, axis);
  return keep ? r.index : r.index.view(r.index.shape().without(axis));
}

}  // namespace penstock::ops
