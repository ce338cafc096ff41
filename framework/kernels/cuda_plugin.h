/* The C table between the main library and libpenstock_cuda.so, which links cuBLASLt and cuDNN but
   no CUDA runtime: it gets streams, pointers and workspaces, and owns no memory. Every function
   returns 0, or non-zero with a message in `error`. */
#ifndef PENSTOCK_CUDA_PLUGIN_H
#define PENSTOCK_CUDA_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_CUDA_PLUGIN_VERSION 1
#define PENSTOCK_ALGORITHM_BYTES 64

typedef struct {
  char text[512];
} PenstockError;

/* Numbers of penstock::DType. */
enum { kPenstockF32 = 1, kPenstockF16 = 2, kPenstockBf16 = 3 };

typedef struct {
  int64_t m, n, k, batch;
  int64_t lda, ldb, ldc, stride_a, stride_b, stride_c; /* elements, row-major */
  int32_t trans_a, trans_b;
  int32_t dtype, dtype_c; /* of a, b, bias, aux; of c */
  int32_t tf32;
  int32_t epilogue; /* penstock::kernels::Epilogue */
  int32_t with_bias, with_bias_grad;
  int64_t ld_aux;
} PenstockGemm;

typedef struct {
  const void* a;
  const void* b;
  void* c;
  const void* bias;
  void* aux;
  void* bias_grad;
  void* workspace;
  float alpha, beta;
  void* stream;
} PenstockGemmCall;

/* An algorithm as the library knows it: plain bytes that may be stored and given back to the same
   library version on the same device model. */
typedef struct {
  unsigned char bytes[PENSTOCK_ALGORITHM_BYTES];
  uint64_t workspace;
} PenstockAlgorithm;

typedef struct {
  int32_t version;
  int64_t (*cublaslt_version)(void);
  int64_t (*cudnn_version)(void);
  int (*create)(void** context, PenstockError* error);
  void (*destroy)(void* context);
  /* Up to `capacity` algorithms within `workspace_limit`, best guess first. */
  int (*gemm_algorithms)(void* context, const PenstockGemm* gemm, uint64_t workspace_limit,
                         PenstockAlgorithm* out, int32_t capacity, int32_t* count,
                         PenstockError* error);
  int (*gemm_run)(void* context, const PenstockGemm* gemm, const PenstockGemmCall* call,
                  const PenstockAlgorithm* algorithm, PenstockError* error);
} PenstockCudaPlugin;

/* The one symbol of the plugin. */
__attribute__((visibility("default"))) const PenstockCudaPlugin* penstock_cuda_plugin(void);

#ifdef __cplusplus
}
#endif
#endif
