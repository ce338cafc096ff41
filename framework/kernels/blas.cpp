#include "framework/kernels/blas.h"

#include <atomic>

#include "framework/core/ledger.h"
#include "framework/kernels/blas_cpu.h"
#include "framework/kernels/blas_cuda.h"

namespace penstock::kernels {
namespace {

std::atomic<bool> g_tf32{false};

void check_gemm(const Gemm& g) {
  check(g.a.dtype() == g.b.dtype(), "matmul: operands are {} and {}, one dtype is needed",
        g.a.dtype(), g.b.dtype());
  check(is_float(g.a.dtype()), "matmul: dtype {} is not supported; expected a float dtype",
        g.a.dtype());
  check(g.c.dtype() == g.a.dtype() || (g.c.dtype() == DType::f32 && is_half(g.a.dtype())),
        "matmul: {} operands cannot give {}", g.a.dtype(), g.c.dtype());
  check(g.a.device() == g.b.device() && g.a.device() == g.c.device(),
        "matmul: operands on {}, {} and result on {}", g.a.device(), g.b.device(), g.c.device());
}

// Fills in dense row strides.
Gemm with_strides(Gemm g) {
  g.lda = g.lda != 0 ? g.lda : g.trans_a ? g.m : g.k;
  g.ldb = g.ldb != 0 ? g.ldb : g.trans_b ? g.k : g.n;
  g.ldc = g.ldc != 0 ? g.ldc : g.n;
  return g;
}

}  // namespace

void set_tf32(bool on) { g_tf32 = on; }
bool tf32() { return g_tf32; }

void gemm(const Gemm& request) {
  check_gemm(request);
  const Gemm g = with_strides(request);
  const double size = double(g.batch);
  // Operands may be parts of larger tensors: count what the product touches.
  const double unit = double(size_of(g.a.dtype()));
  ledger::kernel({}, {}, 2.0 * size * double(g.m) * double(g.n) * double(g.k));
  ledger::bytes(g.a.memory_class(), size * double(g.m * g.k) * unit, 0);
  ledger::bytes(g.b.memory_class(), (g.stride_b == 0 ? 1 : size) * double(g.k * g.n) * unit, 0);
  const double out = size * double(g.m * g.n) * double(size_of(g.c.dtype()));
  ledger::bytes(g.c.memory_class(), g.beta != 0 ? out : 0, out);
  if (g.aux.defined()) {
    const double aux = double(g.aux.bytes());
    ledger::bytes(g.aux.memory_class(), g.epilogue == Epilogue::kBiasGelu ? 0 : aux,
                  g.epilogue == Epilogue::kBiasGelu ? aux : 0);
  }
  if (g.m == 0 || g.n == 0 || g.batch == 0) {
    return;
  }
  if (g.c.device().models == DeviceType::kCuda) {
    gemm_cuda(g);
  } else {
    gemm_cpu(g);
  }
}

bool epilogue_supported(const Gemm& request) {
  const Gemm g = with_strides(request);
  return g.c.device().models == DeviceType::kCuda ? epilogue_supported_cuda(g)
                                                  : epilogue_supported_cpu(g);
}

}  // namespace penstock::kernels
