#include "framework/kernels/cuda_plugin/plugin.h"

#include <cublasLt.h>
#include <cudnn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>

#include "framework/kernels/cuda_plugin/graph.h"

namespace penstock_cuda {

void set_error(PenstockError* error, const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::vsnprintf(error->text, sizeof(error->text), text, args);
  va_end(args);
}

Context::Context() = default;
Context::~Context() {
  if (lt != nullptr) {
    cublasLtDestroy(lt);
  }
  if (dnn != nullptr) {
    cudnnDestroy(dnn);
  }
}

namespace {

int create(void** context, const char* device_json, PenstockError* error) {
  auto c = std::unique_ptr<Context>(new (std::nothrow) Context);
  if (!c) {
    set_error(error, "out of host memory");
    return 1;
  }
  if (device_json != nullptr) {
    c->device = std::make_unique<Descriptor>(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    c->device->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                   int64_t(std::strlen(device_json)), device_json);
    if (!c->device->finalize()) {
      set_error(error, "cuDNN: the device description was refused: %s",
                cudnnGetErrorString(c->device->status()));
      return 1;
    }
    *context = c.release();
    return 0;
  }
  const cublasStatus_t status = cublasLtCreate(&c->lt);
  if (status != CUBLAS_STATUS_SUCCESS) {
    set_error(error, "cublasLtCreate failed: %s", cublasLtGetStatusString(status));
    return 1;
  }
  const cudnnStatus_t dnn = cudnnCreate(&c->dnn);
  if (dnn != CUDNN_STATUS_SUCCESS) {
    set_error(error, "cudnnCreate failed: %s", cudnnGetErrorString(dnn));
    return 1;
  }
  *context = c.release();
  return 0;
}

void destroy(void* context) { delete static_cast<Context*>(context); }

int64_t cublaslt_version() { return int64_t(cublasLtGetVersion()); }
int64_t cudnn_version() { return int64_t(cudnnGetVersion()); }

const PenstockCudaPlugin kPlugin = {
    PENSTOCK_CUDA_PLUGIN_VERSION,
    cublaslt_version,
    cudnn_version,
    create,
    destroy,
    gemm_algorithms,
    gemm_run,
    graph_plans,
    graph_plan_named,
    plan_run,
    plan_free,
    device_json,
};

}  // namespace
}  // namespace penstock_cuda

const PenstockCudaPlugin* penstock_cuda_plugin(void) { return &penstock_cuda::kPlugin; }
