// Convolution, pooling and attention.
#pragma once

#include "framework/core/tensor.h"

namespace penstock::ops {

struct Conv2d {
  i64 stride = 1;
  i64 pad = 0;  // zeros on every side
  i64 dilation = 1;
  i64 groups = 1;
  bool relu = false;  // max(0, .) behind the bias, in the same kernel where the library can
};
// x [N, H, W, C], w [K, R, S, C / groups], bias [K] or undefined: [N, H', W', K] with
// H' = (H + 2 pad - dilation (R - 1) - 1) / stride + 1.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& options = {});
// x [N, D, H, W, C], w [K, Q, R, S, C / groups].
Tensor conv3d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& options = {});

struct Pool2d {
  i64 window = 2;
  i64 stride = 2;
  i64 pad = 0;                    // at most window / 2
  bool count_padding = true;      // avg: padded cells count in the denominator
};
// x [N, H, W, C]. Padded cells never win a maximum; of equals the first in row order wins, and gets
// the gradient. Windows may overlap: gradients add up.
Tensor max_pool2d(const Tensor& x, const Pool2d& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2d& options = {});
// Mean over windows [floor(i H / out), ceil((i + 1) H / out)): any input size gives [N, out, out, C].
Tensor adaptive_avg_pool2d(const Tensor& x, i64 out);
// Mean over all axes between the first and the last: [N, ..., C] to [N, C].
Tensor global_avg_pool(const Tensor& x);

struct AttentionOptions {
  i64 heads = 1;
  bool causal = false;
  Tensor lengths;    // i32 [B]: keys at and after it are padding
  double scale = 0;  // 0: 1 / sqrt(width of a head)
};
// qkv [B, T, 3 C], the packed projection (query, key, value; heads inside each): [B, T, C]. A row
// whose keys are all masked gives 0 with gradient 0. There is no dropout on the probabilities.
Tensor attention(const Tensor& qkv, const AttentionOptions& options);

}  // namespace penstock::ops
