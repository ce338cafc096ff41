#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/trace.h"
#include "framework/kernels/blas.h"
#include "framework/ops/linear.h"

namespace penstock::ops {
namespace {

struct Sizes {
  i64 batch, m, n, k;
  bool shared_b;  // one b for all of a's leading axes
};

Sizes sizes_of(const Tensor& a, const Tensor& b, const MatMul& o) {
  check(a.rank() >= 2 && b.rank() >= 2, "matmul: {} and {}; expected at least two axes each", a, b);
  const i64 m = a.dim(o.transpose_a ? -1 : -2);
  const i64 k = a.dim(o.transpose_a ? -2 : -1);
  const i64 kb = b.dim(o.transpose_b ? -1 : -2);
  const i64 n = b.dim(o.transpose_b ? -2 : -1);
  check(k == kb, "matmul: inner sizes {} and {} of {} and {} differ", k, kb, a, b);
  const bool shared = b.rank() == 2;
  bool equal = a.rank() == b.rank();
  for (int i = 0; equal && i < a.rank() - 2; ++i) {
    equal = a.dim(i) == b.dim(i);
  }
  check(shared || equal, "matmul: leading axes of {} and {} differ", a, b);
  return {a.shape().numel(0, a.rank() - 2), m, n, k, shared};
}

// op(a) op(b) for `batch` products; a shared operand has stride 0.
Tensor product(const Tensor& a, const Tensor& b, const Shape& shape, const Sizes& s, bool trans_a,
               bool trans_b) {
  const Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  kernels::gemm({.a = a,
                 .b = b,
                 .c = y,
                 .m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .trans_a = trans_a,
                 .trans_b = trans_b,
                 .batch = s.batch,
                 .stride_a = s.m * s.k,
                 .stride_b = s.shared_b ? 0 : s.k * s.n,
                 .stride_c = s.m * s.n});
  return y;
}

}  // namespace

Tensor matmul(const Tensor& a_, const Tensor& b_, const MatMul& o) {
  const trace::Op op("matmul");
  Tensor a, b;
  std::tie(a, b) = amp::prepare(amp::Cast::kCompute, a_, b_);
  const Sizes s = sizes_of(a, b, o);
  Shape shape = a.shape().with(a.rank() - 2, s.m).with(a.rank() - 1, s.n);
  const Tensor y = product(a, b, shape, s, o.transpose_a, o.transpose_b);
  return record("matmul", y, {a, b}, [a, b, s, o](Backward& back) {
    const Tensor& dy = back.dy();
    if (back.wants(0)) {
      // a [m, k]: dy op(b)'; stored [k, m]: op(b) dy'.
      const Sizes t = o.transpose_a ? Sizes{s.batch, s.k, s.m, s.n, false}
                                    : Sizes{s.batch, s.m, s.k, s.n, s.shared_b};
      if (o.transpose_a && s.shared_b) {
        // op(b) is shared as the left operand: its products' stride is 0.
        const Tensor da = Tensor::empty(a.shape(), a.dtype(), a.device());
        kernels::gemm({.a = b, .b = dy, .c = da, .m = s.k, .n = s.m, .k = s.n,
                       .trans_a = o.transpose_b, .trans_b = true, .batch = s.batch,
                       .stride_a = 0, .stride_b = s.m * s.n, .stride_c = s.k * s.m});
        back.set(0, da);
      } else if (o.transpose_a) {
        back.set(0, product(b, dy, a.shape(), t, o.transpose_b, true));
      } else {
        back.set(0, product(dy, b, a.shape(), t, false, !o.transpose_b));
      }
    }
    if (back.wants(1)) {
      // b [k, n]: op(a)' dy; stored [n, k]: dy' op(a). A shared b adds up over the products, whose
      // rows then are one long axis.
      const bool t = o.transpose_b;
      if (s.shared_b && !o.transpose_a) {
        const i64 rows = s.batch * s.m;
        const Tensor db = Tensor::empty(b.shape(), b.dtype(), b.device());
        kernels::gemm({.a = t ? dy : a, .b = t ? a : dy, .c = db, .m = t ? s.n : s.k,
                       .n = t ? s.k : s.n, .k = rows, .trans_a = true});
        back.set(1, db);
      } else {
        const Sizes z = t ? Sizes{s.batch, s.n, s.k, s.m, false} : Sizes{s.batch, s.k, s.n, s.m, false};
        const Shape each = a.shape().with(a.rank() - 2, z.m).with(a.rank() - 1, z.n);
        // The engine sums over the leading axes of a shared b.
        back.set(1, t ? product(dy, a, each, z, true, o.transpose_a)
                      : product(a, dy, each, z, !o.transpose_a, false));
      }
    }
  });
}

}  // namespace penstock::ops
