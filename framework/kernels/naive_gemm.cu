#include "framework/core/math.h"
#include "framework/kernels/naive.h"
#include "framework/kernels/rows.h"

namespace penstock::kernels::naive {
namespace {

// One row of one product. The CPU walks k outermost so that the inner loop runs along b's rows; a
// GPU team gives each thread its own columns.
template <class T, class Out, class S>
struct Product {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  const T* a;
  const T* b;
  Out* c;
  const T* bias;
  T* aux;
  i64 m, n, k;
  i64 row_a, col_a, row_b, col_b, ldc;  // element steps of op(a) and op(b)
  i64 stride_a, stride_b, stride_c;
  S alpha, beta;
  Epilogue epilogue;

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 item) const {
    const i64 product = item / m;
    const i64 row = item % m;
    const T* pa = a + product * stride_a + row * row_a;
    const T* pb = b + product * stride_b;
    Out* pc = c + product * stride_c + row * ldc;
    team.each(n, [&](i64 j) {
      S sum = 0;
      for (i64 p = 0; p < k; ++p) {
        sum += S(load(pa[p * col_a])) * S(load(pb[p * row_b + j * col_b]));
      }
      pc[j] = store<Out>(finish(sum, pc[j], row, j));
    });
  }

  PENSTOCK_HD S finish(S sum, Out before, i64 row, i64 j) const {
    S y = alpha * sum;
    if (beta != S(0)) {
      y += beta * S(load(before));
    }
    if (bias != nullptr) {
      y += S(load(bias[j]));
    }
    switch (epilogue) {
      case Epilogue::kNone:
      case Epilogue::kBias: break;
      case Epilogue::kBiasRelu: y = y > S(0) ? y : S(0); break;
      case Epilogue::kBiasGelu:
        aux[row * n + j] = store<T>(y);
        y = math::gelu_tanh(y);
        break;
      case Epilogue::kDRelu: y = load(aux[row * n + j]) > 0 ? y : S(0); break;
      case Epilogue::kDGelu: y *= math::gelu_tanh_grad(S(load(aux[row * n + j]))); break;
    }
    return y;
  }
};

template <class T, class Out>
void run(const Gemm& g) {
  using S = compute_t<T>;
  const Product<T, Out, S> product{
      .a = g.a.data<T>(),
      .b = g.b.data<T>(),
      .c = g.c.data<Out>(),
      .bias = g.bias.defined() ? g.bias.data<T>() : nullptr,
      .aux = g.aux.defined() ? g.aux.data<T>() : nullptr,
      .m = g.m,
      .n = g.n,
      .k = g.k,
      .row_a = g.trans_a ? 1 : g.lda,
      .col_a = g.trans_a ? g.lda : 1,
      .row_b = g.trans_b ? 1 : g.ldb,
      .col_b = g.trans_b ? g.ldb : 1,
      .ldc = g.ldc,
      .stride_a = g.stride_a,
      .stride_b = g.stride_b,
      .stride_c = g.stride_c,
      .alpha = S(g.alpha),
      .beta = S(g.beta),
      .epilogue = g.epilogue,
  };
  for_each_row(g.c.device(), g.batch * g.m, g.n * (g.k + 1), product);
}

}  // namespace

void gemm(const Gemm& g) {
  visit_float(g.a.dtype(), "matmul", [&]<class T>() {
    if (g.c.dtype() == dtype_of<T>) {
      run<T, T>(g);
    } else if constexpr (!std::is_same_v<T, double>) {
      run<T, float>(g);
    }
  });
}

}  // namespace penstock::kernels::naive
