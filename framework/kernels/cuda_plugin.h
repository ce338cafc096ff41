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

/* A cuDNN graph of one of these kinds. Pointers are given to plan_run in the order named here. */
enum {
  kPenstockConvForward = 1,         /* x, w, y [, bias] */
  kPenstockConvBackwardData = 2,    /* dy, w, dx */
  kPenstockConvBackwardWeights = 3, /* x, dy, dw */
  kPenstockAttentionForward = 4,    /* q, k, v, y, stats [, lengths] */
  kPenstockAttentionBackward = 5    /* q, k, v, y, stats, dy, dq, dk, dv, row_sum [, dq_sum unless
                                       deterministic] [, lengths] */
};

typedef struct {
  int32_t kind;
  int32_t dtype, dtype_out; /* of the operands; of dw */
  int32_t tf32;
  /* Convolutions: channels last, weights [K, (Q,) R, S, C / groups]. */
  int32_t spatial; /* 2 or 3 */
  int32_t relu, with_bias;
  int64_t n, c, k, groups;
  int64_t in[3], out[3], kernel[3], stride[3], pad[3], dilation[3]; /* depth, height, width */
  /* Attention: q, k, v are parts of [B, T, 3, H, D]; y, dy are [B, T, H, D]. */
  int32_t causal, with_lengths, deterministic;
  int64_t batch, time, heads, width;
  float scale;
} PenstockGraph;

typedef struct {
  void* plan; /* free with plan_free */
  uint64_t workspace;
  int32_t deterministic; /* the engine says nothing against it */
  char name[64];         /* "eng12{k2=1,...}" */
} PenstockPlan;

typedef struct {
  int32_t version;
  int64_t (*cublaslt_version)(void);
  int64_t (*cudnn_version)(void);
  /* `device_json`: null to use the GPU; else cuDNN's description of one, and nothing can run. */
  int (*create)(void** context, const char* device_json, PenstockError* error);
  void (*destroy)(void* context);
  /* Up to `capacity` algorithms within `workspace_limit`, best guess first. */
  int (*gemm_algorithms)(void* context, const PenstockGemm* gemm, uint64_t workspace_limit,
                         PenstockAlgorithm* out, int32_t capacity, int32_t* count,
                         PenstockError* error);
  int (*gemm_run)(void* context, const PenstockGemm* gemm, const PenstockGemmCall* call,
                  const PenstockAlgorithm* algorithm, PenstockError* error);
  /* Up to `capacity` finished plans within `workspace_limit`, best guess first. Without a GPU,
     plans that lack nothing but a device to load their code on count as found, with a null plan. */
  int (*graph_plans)(void* context, const PenstockGraph* graph, uint64_t workspace_limit,
                     PenstockPlan* out, int32_t capacity, int32_t* count, PenstockError* error);
  /* The plan with that name again, as a cache has stored it. */
  int (*graph_plan_named)(void* context, const PenstockGraph* graph, const char* name,
                          PenstockPlan* out, PenstockError* error);
  int (*plan_run)(void* context, void* plan, void* const* pointers, int32_t count,
                  void* workspace, void* stream, PenstockError* error);
  void (*plan_free)(void* plan);
  /* cuDNN's description of the device, for checks on machines without one. */
  int (*device_json)(void* context, char* out, int32_t capacity, PenstockError* error);
} PenstockCudaPlugin;

/* The one symbol of the plugin. */
__attribute__((visibility("default"))) const PenstockCudaPlugin* penstock_cuda_plugin(void);

#ifdef __cplusplus
}
#endif
#endif
