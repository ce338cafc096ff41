#include "framework/kernels/cuda_plugin/plugin.h"

#include <cublasLt.h>
#include <cudnn.h>

#include <cstdarg>
#include <cstdio>
#include <new>

namespace penstock_cuda {

void set_error(PenstockError* error, const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::vsnprintf(error->text, sizeof(error->text), text, args);
  va_end(args);
}

namespace {

int create(void** context, PenstockError* error) {
  auto* c = new (std::nothrow) Context;
  if (c == nullptr) {
    set_error(error, "out of host memory");
    return 1;
  }
  const cublasStatus_t status = cublasLtCreate(&c->lt);
  if (status != CUBLAS_STATUS_SUCCESS) {
    set_error(error, "cublasLtCreate failed: %s", cublasLtGetStatusString(status));
    delete c;
    return 1;
  }
  *context = c;
  return 0;
}

void destroy(void* context) {
  auto* c = static_cast<Context*>(context);
  cublasLtDestroy(c->lt);
  delete c;
}

int64_t cublaslt_version() { return int64_t(cublasLtGetVersion()); }
int64_t cudnn_version() { return int64_t(cudnnGetVersion()); }

const PenstockCudaPlugin kPlugin = {
    PENSTOCK_CUDA_PLUGIN_VERSION, cublaslt_version, cudnn_version, create, destroy,
    gemm_algorithms,              gemm_run,
};

}  // namespace
}  // namespace penstock_cuda

const PenstockCudaPlugin* penstock_cuda_plugin(void) { return &penstock_cuda::kPlugin; }
