/* The C table between the main library and libpenstock_onednn.so, which links oneDNN and OpenMP. It
   owns no tensor memory: operands and the workspace come with every call. Functions that can fail
   return 0, or non-zero with a message in `error`; no exception crosses. */
#ifndef PENSTOCK_ONEDNN_PLUGIN_H
#define PENSTOCK_ONEDNN_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_ONEDNN_PLUGIN_VERSION 1

typedef struct {
  char text[256];
} PenstockOnednnError;

/* What an opening function returns beside 0: */
enum {
  kPenstockOnednnFailed = 1,
  kPenstockOnednnUnsupported = 2 /* no optimised implementation; not an error */
};

/* c = alpha op(a) op(b) + beta c (+ bias[n]) (then ReLU). Row-major; strides in elements. Dtypes are
   numbers of penstock::DType. Every byte takes part in the key, so start from zero. */
typedef struct {
  int64_t m, n, k, batch;
  int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
  int32_t trans_a, trans_b;
  int32_t dtype, dtype_c; /* of a, b, bias; of c */
  int32_t with_bias, relu;
  float alpha, beta; /* with_bias needs alpha 1 */
  int32_t threads;
  int32_t zero;
} PenstockOnednnMatmul;

enum {
  kPenstockOnednnForward = 0,        /* a = x, b = w, c = y */
  kPenstockOnednnBackwardData = 1,   /* a = dy, b = w, c = dx */
  kPenstockOnednnBackwardWeights = 2 /* a = x, b = dy, c = dw */
};

/* Channels last; weights [K, (Q,) R, S, C / groups]. */
typedef struct {
  int32_t pass;
  int32_t spatial; /* 2 or 3 */
  int32_t dtype, dtype_dw;
  int32_t with_bias, relu; /* forward */
  int32_t add;             /* backward weights: add to what dw holds */
  int32_t threads;
  int64_t n, c, k, groups;
  int64_t in[3], out[3], kernel[3], stride[3], pad[3], dilation[3]; /* depth, height, width */
} PenstockOnednnConv;

typedef struct {
  uint64_t workspace; /* bytes that run() needs, at an address divisible by 64 */
  char name[64];      /* the library's name of the implementation, "brgconv:avx512_core" */
} PenstockOnednnInfo;

typedef struct {
  const void* a;
  const void* b;
  const void* bias; /* null without one */
  void* c;
  void* workspace;
} PenstockOnednnCall;

typedef struct {
  int32_t version;
  const char* (*library)(void); /* "oneDNN 2.6.3" */
  const char* (*isa)(void);     /* what the library makes of this CPU, "avx512_core_bf16" */
  int (*usable)(int32_t dtype); /* non-zero: the CPU computes in it, nothing is emulated */
  /* Find the problem among those made before, or make it. Close it after use; problems are cached,
     so closing frees nothing soon. */
  int (*open_matmul)(const PenstockOnednnMatmul* matmul, void** problem, PenstockOnednnInfo* info,
                     PenstockOnednnError* error);
  int (*open_conv)(const PenstockOnednnConv* conv, void** problem, PenstockOnednnInfo* info,
                   PenstockOnednnError* error);
  int (*run)(void* problem, const PenstockOnednnCall* call, PenstockOnednnError* error);
  void (*close)(void* problem);
  /* Runs body(context, i) for i in [0, count) on the library's own team of threads; null when the
     library was built with another thread runtime than OpenMP. */
  void (*parallel)(int count, void (*body)(void* context, int index), void* context);
  /* Problems kept, and how many may be: tests. */
  int64_t (*cached)(void);
  int64_t (*capacity)(void);
} PenstockOnednnPlugin;

/* The one exported symbol. */
__attribute__((visibility("default"))) const PenstockOnednnPlugin* penstock_onednn_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
