#include "framework/kernels/blas_cpu.h"

#include "framework/core/ledger.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/naive.h"
#include "framework/kernels/onednn.h"

namespace penstock::kernels {
namespace {

bool fused(const Gemm& g) {
  return g.epilogue == Epilogue::kNone ||
         (g.alpha == 1 && (g.epilogue == Epilogue::kBias || g.epilogue == Epilogue::kBiasRelu));
}

// Products of consecutive rows of `a` with one `b` are one product.
Gemm merged(Gemm g) {
  if (g.batch > 1 && g.stride_b == 0 && !g.trans_a && g.stride_a == g.m * g.lda &&
      g.stride_c == g.m * g.ldc) {
    g.m *= g.batch;
    g.batch = 1;
  }
  if (g.batch == 1) {
    g.stride_a = g.stride_b = g.stride_c = 0;  // no part of the problem then
  }
  return g;
}

// False: the library has nothing for this problem.
bool run_library(const Gemm& request) {
  const Gemm g = request.epilogue == Epilogue::kNone ? merged(request) : request;
  PenstockOnednnMatmul d{};
  d.m = g.m;
  d.n = g.n;
  d.k = g.k;
  d.batch = g.batch;
  d.lda = g.lda;
  d.ldb = g.ldb;
  d.ldc = g.ldc;
  d.stride_a = g.stride_a;
  d.stride_b = g.stride_b;
  d.stride_c = g.stride_c;
  d.trans_a = g.trans_a ? 1 : 0;
  d.trans_b = g.trans_b ? 1 : 0;
  d.dtype = int32_t(g.a.dtype());
  d.dtype_c = int32_t(g.c.dtype());
  d.with_bias = g.epilogue != Epilogue::kNone && g.bias.defined() ? 1 : 0;
  d.relu = g.epilogue == Epilogue::kBiasRelu ? 1 : 0;
  d.alpha = float(g.alpha);
  d.beta = float(g.beta);
  const OnednnProblem problem(d);
  if (!problem) {
    return false;
  }
  problem.run({.a = g.a.raw(), .b = g.b.raw(), .bias = g.bias.raw(), .c = g.c.raw()},
              g.c.device());
  return true;
}

// f64 stays with our own kernels, f16 as well unless the CPU has its arithmetic.
bool library_dtype(DType dtype) {
  const PenstockOnednnPlugin* library = onednn();
  return dtype != DType::f64 && library != nullptr && library->usable(int32_t(dtype)) != 0;
}

}  // namespace

void gemm_cpu(const Gemm& g) {
  require_cpu_arithmetic(g.a.dtype(), "matmul");
  bool done = false;
  if (g.k > 0 && library_dtype(g.a.dtype())) {
    if (fused(g)) {
      done = run_library(g);
    } else {
      Gemm product = g;
      product.epilogue = Epilogue::kNone;
      if (g.epilogue == Epilogue::kBiasGelu) {
        product.c = g.aux;  // what the derivative wants, and then the argument of the pass
        product.ldc = g.n;
        product.stride_c = g.m * g.n;
        product.epilogue = g.alpha == 1 && g.beta == 0 ? Epilogue::kBias : Epilogue::kNone;
      }
      done = (g.epilogue != Epilogue::kBiasGelu || g.beta == 0) && run_library(product);
      if (done) {
        naive::finish(g, product.epilogue == Epilogue::kBias);
      }
    }
  }
  if (!done) {
    naive::gemm(g);
  }
  if (g.bias_grad.defined()) {
    check(g.ldc == g.n && g.batch == 1, "matmul: bias gradients need one dense result");
    sum_middle_into(g.bias_grad, 0, g.c, 1, g.m, g.n);
  }
}

bool epilogue_supported_cpu(const Gemm& g) {
  return library_dtype(g.a.dtype()) && fused(g) && !g.bias_grad.defined();
}

}  // namespace penstock::kernels
