// Inside of libpenstock_cuda.so. No exception leaves it, no memory is its own.
#pragma once

#include <memory>

#include "framework/kernels/cuda_plugin.h"

struct cublasLtContext;
struct cudnnContext;

namespace penstock_cuda {

class Descriptor;

// Without a GPU, `lt` and `dnn` are null and `device` describes one.
struct Context {
  Context();
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cublasLtContext* lt = nullptr;
  cudnnContext* dnn = nullptr;
  std::unique_ptr<Descriptor> device;
};

[[gnu::format(printf, 2, 3)]] void set_error(PenstockError* error, const char* text, ...);

int gemm_algorithms(void* context, const PenstockGemm* gemm, uint64_t workspace_limit,
                    PenstockAlgorithm* out, int32_t capacity, int32_t* count,
                    PenstockError* error);
int gemm_run(void* context, const PenstockGemm* gemm, const PenstockGemmCall* call,
             const PenstockAlgorithm* algorithm, PenstockError* error);

int graph_plans(void* context, const PenstockGraph* graph, uint64_t workspace_limit,
                PenstockPlan* out, int32_t capacity, int32_t* count, PenstockError* error);
int graph_plan_named(void* context, const PenstockGraph* graph, const char* name,
                     PenstockPlan* out, PenstockError* error);
int plan_run(void* context, void* plan, void* const* pointers, int32_t count, void* workspace,
             void* stream, PenstockError* error);
void plan_free(void* plan);
int device_json(void* context, char* out, int32_t capacity, PenstockError* error);

}  // namespace penstock_cuda
