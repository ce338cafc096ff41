// The CPU side of blas.h; on meta(cpu) the workspace that a call would hold.
#pragma once

#include "framework/kernels/blas.h"

namespace penstock::kernels {

void gemm_cpu(const Gemm& g);
bool epilogue_supported_cpu(const Gemm& g);

}  // namespace penstock::kernels
