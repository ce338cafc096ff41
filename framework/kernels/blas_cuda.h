// The CUDA side of blas.h; also what it would do, for plans on meta(cuda).
#pragma once

#include "framework/kernels/blas.h"

namespace penstock::kernels {

void gemm_cuda(const Gemm& g);
bool epilogue_supported_cuda(const Gemm& g);

}  // namespace penstock::kernels
