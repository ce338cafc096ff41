// Inside of libpenstock_cuda.so. No exception leaves it, no memory is its own.
#pragma once

#include "framework/kernels/cuda_plugin.h"

struct cublasLtContext;
struct cudnnContext;

namespace penstock_cuda {

struct Context {
  cublasLtContext* lt = nullptr;
  cudnnContext* dnn = nullptr;
};

[[gnu::format(printf, 2, 3)]] void set_error(PenstockError* error, const char* text, ...);

int gemm_algorithms(void* context, const PenstockGemm* gemm, uint64_t workspace_limit,
                    PenstockAlgorithm* out, int32_t capacity, int32_t* count,
                    PenstockError* error);
int gemm_run(void* context, const PenstockGemm* gemm, const PenstockGemmCall* call,
             const PenstockAlgorithm* algorithm, PenstockError* error);

}  // namespace penstock_cuda
