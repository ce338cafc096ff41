// Matrix products: the seam to oneDNN (CPU) and cuBLASLt (CUDA), with a naive kernel of our own for
// f64, for machines without either, and for tests. Everything is row-major.
#pragma once

#include <cstdint>

#include "framework/core/tensor.h"

namespace penstock::kernels {

// May f32 products and convolutions use tf32 on a GPU's matrix units? Process-wide; off at start.
void set_tf32(bool on);
bool tf32();

// What happens to the product before it is stored.
enum class Epilogue : std::uint8_t {
  kNone,
  kBias,      // + bias[n]
  kBiasRelu,  // max(0, . + bias[n])
  kBiasGelu,  // gelu_tanh(. + bias[n]); `aux` [m, n] receives the argument
  kDRelu,     // times 1 where aux [m, n] > 0, else 0: aux is the ReLU's output
  kDGelu,     // times gelu_tanh'(aux [m, n])
};

// c = alpha op(a) op(b) + beta c, for each of `batch` products. op(a) is [m, k], op(b) is [k, n].
struct Gemm {
  Tensor a;
  Tensor b;
  Tensor c;
  i64 m = 0;
  i64 n = 0;
  i64 k = 0;
  bool trans_a = false;  // a is stored [k, m]
  bool trans_b = false;  // b is stored [n, k]
  i64 lda = 0;           // elements from row to row as stored; 0: dense
  i64 ldb = 0;
  i64 ldc = 0;
  i64 batch = 1;
  i64 stride_a = 0;  // elements from one product's operand to the next
  i64 stride_b = 0;
  i64 stride_c = 0;
  double alpha = 1;
  double beta = 0;
  Epilogue epilogue = Epilogue::kNone;
  Tensor bias;       // [n]
  Tensor aux;        // [m, n]
  Tensor bias_grad;  // f32 [n], with kDRelu, kDGelu or kNone: receives the column sums of c
};

// a and b share a dtype; c has it too or is f32 (gradients into f32 sinks). Accumulates in f32
// (f64 for f64). k == 0 gives beta c. bf16 on a CPU without bf16 arithmetic is an error.
void gemm(const Gemm& g);

// Can the library apply this epilogue in its kernel for these operands? Block ops ask before they
// fuse; the naive kernel can always.
bool epilogue_supported(const Gemm& g);

}  // namespace penstock::kernels
