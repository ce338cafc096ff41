#include "framework/core/math.h"
#include "framework/kernels/naive.h"
#include "framework/kernels/rows.h"

namespace penstock::kernels::naive {
namespace {

// One row of the result.
template <class T, class Out, class S>
struct Finish {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  const T* bias;
  T* aux;
  Out* c;
  i64 n, ldc;
  Epilogue epilogue;

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    Out* y = c + row * ldc;
    T* saved = aux + row * n;
    const T* b = bias;
    switch (epilogue) {
      case Epilogue::kNone: break;
      case Epilogue::kBias:
        team.each(n, [=](i64 j) { y[j] = store<Out>(S(load(y[j])) + S(load(b[j]))); });
        break;
      case Epilogue::kBiasRelu:
        team.each(n, [=](i64 j) {
          const S v = S(load(y[j])) + (b != nullptr ? S(load(b[j])) : S(0));
          y[j] = store<Out>(v > S(0) ? v : S(0));
        });
        break;
      case Epilogue::kBiasGelu:
        if (b != nullptr) {
          team.each(n, [=](i64 j) { saved[j] = store<T>(S(load(saved[j])) + S(load(b[j]))); });
        }
        team.each(n, [=](i64 j) { y[j] = store<Out>(math::gelu_tanh(S(load(saved[j])))); });
        break;
      case Epilogue::kDRelu:
        team.each(n, [=](i64 j) {
          y[j] = store<Out>(load(saved[j]) > 0 ? S(load(y[j])) : S(0));
        });
        break;
      case Epilogue::kDGelu:
        team.each(n, [=](i64 j) {
          y[j] = store<Out>(S(load(y[j])) * math::gelu_tanh_grad(S(load(saved[j]))));
        });
        break;
    }
  }
};

template <class T, class Out>
void run(const Gemm& g, bool bias_done) {
  using S = compute_t<T>;
  const bool with_bias = g.bias.defined() && !bias_done;
  if (g.epilogue == Epilogue::kNone || (g.epilogue == Epilogue::kBias && !with_bias)) {
    return;
  }
  for_each_row(g.c.device(), g.m, g.n,
               Finish<T, Out, S>{.bias = with_bias ? g.bias.data<T>() : nullptr,
                                 .aux = g.aux.defined() ? g.aux.data<T>() : nullptr,
                                 .c = g.c.data<Out>(),
                                 .n = g.n,
                                 .ldc = g.ldc,
                                 .epilogue = g.epilogue});
}

}  // namespace

void finish(const Gemm& g, bool bias_done) {
  check(g.batch == 1, "matmul: an epilogue over {} products, expected one", g.batch);
  visit_float(g.a.dtype(), "matmul", [&]<class T>() {
    if (g.c.dtype() == dtype_of<T>) {
      run<T, T>(g, bias_done);
    } else if constexpr (!std::is_same_v<T, double>) {
      run<T, float>(g, bias_done);
    }
  });
}

}  // namespace penstock::kernels::naive
