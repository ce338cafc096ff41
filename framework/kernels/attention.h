// Scaled dot-product attention on packed projections: flash kernels of cuDNN on CUDA where a shape is
// accepted, products and softmax otherwise.
#pragma once

#include "framework/core/tensor.h"

namespace penstock::kernels {

struct Attention {
  i64 batch = 0;
  i64 time = 0;
  i64 heads = 0;
  i64 width = 0;  // of a head
  bool causal = false;
  double scale = 1;  // of the scores, usually 1 / sqrt(width)
};

// qkv [B, T, 3, H, D] as the packed projection leaves it; lengths i32 [B]: keys at and after it are
// padding (undefined: none). y [B, T, H, D]; `saved` f32 [B, H, T] receives max + log sum of each
// row's scores. A row whose keys are all masked gives 0.
void attention_forward(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                       const Tensor& y, const Tensor& saved);
// dqkv [B, T, 3, H, D] from dy [B, T, H, D].
void attention_backward(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                        const Tensor& y, const Tensor& saved, const Tensor& dy,
                        const Tensor& dqkv);

}  // namespace penstock::kernels
