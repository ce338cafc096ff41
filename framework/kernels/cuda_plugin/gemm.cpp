// Matrix products through cuBLASLt. Row-major c = a b is column-major c' = b' a', so operands swap.
#include <cublasLt.h>

#include <cstring>
#include <vector>

#include "framework/kernels/cuda_plugin/plugin.h"

namespace penstock_cuda {
namespace {

cudaDataType_t type_of(int32_t dtype) {
  switch (dtype) {
    case kPenstockF16: return CUDA_R_16F;
    case kPenstockBf16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

// kernels::Epilogue in the library's words.
enum Epilogue { kNone, kBias, kBiasRelu, kBiasGelu, kDRelu, kDGelu };

bool lt(cublasStatus_t status, const char* what, PenstockError* error) {
  if (status == CUBLAS_STATUS_SUCCESS) {
    return true;
  }
  set_error(error, "cublasLt: %s failed: %s", what, cublasLtGetStatusString(status));
  return false;
}

struct Descriptors {
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t c = nullptr;

  Descriptors() = default;
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    cublasLtMatmulDescDestroy(op);
    for (auto* layout : {a, b, c}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    cublasLtMatmulDescSetAttribute(op, attribute, &value, sizeof(value));
  }

  static bool layout(cublasLtMatrixLayout_t* out, const PenstockGemm& g, int32_t dtype,
                     uint64_t rows, uint64_t cols, int64_t ld, int64_t stride,
                     PenstockError* error) {
    if (!lt(cublasLtMatrixLayoutCreate(out, type_of(dtype), rows, cols, ld), "a layout", error)) {
      return false;
    }
    if (g.batch > 1) {
      const auto count = int32_t(g.batch);
      cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                       sizeof(count));
      cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                       sizeof(stride));
    }
    return true;
  }

  bool build(const PenstockGemm& g, PenstockError* error) {
    const cublasComputeType_t compute = g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (!lt(cublasLtMatmulDescCreate(&op, compute, CUDA_R_32F), "a descriptor", error)) {
      return false;
    }
    // The library's first operand is our b, its second our a.
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    switch (g.epilogue) {
      case kBias: epilogue = CUBLASLT_EPILOGUE_BIAS; break;
      case kBiasRelu: epilogue = CUBLASLT_EPILOGUE_RELU_BIAS; break;
      case kBiasGelu: epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS; break;
      case kDGelu:
        epilogue = g.with_bias_grad ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
        break;
      default: break;
    }
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (g.with_bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(g.dtype));
    }
    if (g.epilogue == kBiasGelu || g.epilogue == kDGelu) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.ld_aux);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(g.dtype));
    }
    const uint64_t m = uint64_t(g.m);
    const uint64_t n = uint64_t(g.n);
    const uint64_t k = uint64_t(g.k);
    return layout(&a, g, g.dtype, g.trans_b ? k : n, g.trans_b ? n : k, g.ldb, g.stride_b, error) &&
           layout(&b, g, g.dtype, g.trans_a ? m : k, g.trans_a ? k : m, g.lda, g.stride_a, error) &&
           layout(&c, g, g.dtype_c, n, m, g.ldc, g.stride_c, error);
  }
};

cublasLtHandle_t handle_of(void* context) { return static_cast<Context*>(context)->lt; }

}  // namespace

int gemm_algorithms(void* context, const PenstockGemm* gemm, uint64_t workspace_limit,
                    PenstockAlgorithm* out, int32_t capacity, int32_t* count,
                    PenstockError* error) {
  *count = 0;
  Descriptors d;
  if (!d.build(*gemm, error)) {
    return 1;
  }
  cublasLtMatmulPreference_t preference = nullptr;
  if (!lt(cublasLtMatmulPreferenceCreate(&preference), "a preference", error)) {
    return 1;
  }
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace_limit, sizeof(workspace_limit));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(capacity));
  int returned = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_of(context), d.op, d.a, d.b, d.c, d.c, preference, capacity, found.data(), &returned);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    return 0;  // no algorithm: the caller takes the unfused path
  }
  if (!lt(status, "the heuristic", error)) {
    return 1;
  }
  for (int i = 0; i < returned; ++i) {
    if (found[size_t(i)].state != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    PenstockAlgorithm& a = out[(*count)++];
    static_assert(sizeof(found[0].algo) == PENSTOCK_ALGORITHM_BYTES);
    std::memcpy(a.bytes, &found[size_t(i)].algo, sizeof(a.bytes));
    a.workspace = found[size_t(i)].workspaceSize;
  }
  return 0;
}

int gemm_run(void* context, const PenstockGemm* gemm, const PenstockGemmCall* call,
             const PenstockAlgorithm* algorithm, PenstockError* error) {
  Descriptors d;
  if (!d.build(*gemm, error)) {
    return 1;
  }
  if (gemm->with_bias) {
    d.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias);
  }
  if (gemm->with_bias_grad) {
    d.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias_grad);
    d.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
  }
  if (gemm->epilogue == kBiasGelu || gemm->epilogue == kDGelu) {
    d.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call->aux);
  }
  cublasLtMatmulAlgo_t algo;
  std::memcpy(&algo, algorithm->bytes, sizeof(algo));
  const cublasStatus_t status = cublasLtMatmul(
      handle_of(context), d.op, &call->alpha, call->b, d.a, call->a, d.b, &call->beta, call->c,
      d.c, call->c, d.c, &algo, call->workspace, algorithm->workspace,
      static_cast<cudaStream_t>(call->stream));
  return lt(status, "a product", error) ? 0 : 1;
}

}  // namespace penstock_cuda
