// The CUDA side of attention.h; on meta(cuda) the memory that a call would hold.
#pragma once

#include "framework/kernels/attention.h"

namespace penstock::kernels {

// False: the library has no engine for this problem, the caller takes its general path.
bool attention_supported_cuda(const Attention& a, const Tensor& qkv, const Tensor& lengths);
void attention_forward_cuda(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                            const Tensor& y, const Tensor& saved);
void attention_backward_cuda(const Attention& a, const Tensor& qkv, const Tensor& lengths,
                             const Tensor& y, const Tensor& saved, const Tensor& dy,
                             const Tensor& dqkv);

}  // namespace penstock::kernels
