// Mixed precision: which dtype an op computes in. The first line of an op names its class and gets
// its inputs in the dtype that class asks for; the cast is recorded, so gradients come back right.
#pragma once

#include <tuple>

#include "framework/core/tensor.h"

namespace penstock::amp {

enum class Cast {
  kCompute,  // matrix products, convolutions, attention: the scope's dtype
  kFloat32,  // losses and transcendental functions on their own: at least f32
  kPromote,  // element-wise ops of several inputs: the widest dtype among them
};

// While one lives on this thread, kCompute ops work in `dtype` (f16, bf16; f32 switches it off).
class Scope {
 public:
  explicit Scope(DType dtype);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  DType before_;
};

// The dtype of kCompute ops in this thread's scope; f32 outside of one (no casting then).
DType compute_dtype();

// `x` in `dtype`, recorded; a parameter's low-precision twin is used when it has one. Undefined and
// integer tensors pass unchanged.
Tensor cast(const Tensor& x, DType dtype);

namespace detail {
DType target(Cast c, std::initializer_list<const Tensor*> inputs);
}

// The inputs in the dtype that `c` asks for, as a tuple.
template <class... T>
auto prepare(Cast c, const T&... x) {
  const DType dtype = detail::target(c, {&x...});
  return std::make_tuple(cast(x, dtype)...);
}

}  // namespace penstock::amp
