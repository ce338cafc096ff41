#include "framework/autograd/amp.h"

#include <utility>

#include "framework/autograd/autograd.h"
#include "framework/core/trace.h"
#include "framework/kernels/basic.h"

namespace penstock::amp {
namespace {

thread_local DType t_dtype = DType::f32;

// f64 > f32 > half; f16 with bf16 meets in f32, which holds both.
DType wider(DType a, DType b) {
  if (a == b || !is_float(b)) {
    return a;
  }
  if (!is_float(a)) {
    return b;
  }
  if (a == DType::f64 || b == DType::f64) {
    return DType::f64;
  }
  return DType::f32;
}

}  // namespace

Scope::Scope(DType dtype) : before_(std::exchange(t_dtype, dtype)) {
  check(is_float(dtype), "amp: {} is not a float dtype", dtype);
}
Scope::~Scope() { t_dtype = before_; }

DType compute_dtype() { return t_dtype; }

Tensor cast(const Tensor& x, DType dtype) {
  if (!x.defined() || x.dtype() == dtype || !is_float(x.dtype())) {
    return x;
  }
  if (const Tensor twin = low_precision(x, dtype); twin.defined()) {
    return twin;
  }
  const trace::Op op("cast");
  const Tensor y = kernels::cast(x.detached(), dtype);
  return record("cast", y, {x}, [](Backward& b) { b.set(0, b.dy()); });
}

namespace detail {

DType target(Cast c, std::initializer_list<const Tensor*> inputs) {
  DType widest = DType::boolean;
  for (const Tensor* x : inputs) {
    if (x->defined()) {
      widest = wider(widest, x->dtype());
    }
  }
  switch (c) {
    case Cast::kCompute:
      // f64 is never narrowed; outside a scope nothing is.
      if (widest == DType::f64 || t_dtype == DType::f32) {
        return widest;
      }
      return t_dtype;
    case Cast::kFloat32:
      return is_half(widest) && t_dtype != DType::f32 ? DType::f32 : widest;
    case Cast::kPromote: return widest;
  }
  return widest;
}

}  // namespace detail
}  // namespace penstock::amp
