// Convolutions: the seam to oneDNN (CPU) and the cuDNN graph API (CUDA), with naive kernels of our
// own for f64, for machines without either, and for tests. Images are [N, H, W, C] or
// [N, D, H, W, C], weights [K, R, S, C / groups] or [K, Q, R, S, C / groups].
#pragma once

#include <array>

#include "framework/core/tensor.h"

namespace penstock::kernels {

// Geometry of a convolution over depth, height and width; 2-D has depth 1 everywhere.
struct Conv {
  i64 n = 0;
  i64 channels = 0;   // C, of the input
  i64 filters = 0;    // K, of the output
  i64 groups = 1;
  std::array<i64, 3> in = {1, 1, 1};
  std::array<i64, 3> kernel = {1, 1, 1};
  std::array<i64, 3> stride = {1, 1, 1};
  std::array<i64, 3> pad = {0, 0, 0};  // on both sides
  std::array<i64, 3> dilation = {1, 1, 1};

  // Output extent of axis i: (in + 2 pad - dilation (kernel - 1) - 1) / stride + 1.
  i64 out(int i) const {
    return (in[std::size_t(i)] + 2 * pad[std::size_t(i)] -
            dilation[std::size_t(i)] * (kernel[std::size_t(i)] - 1) - 1) /
               stride[std::size_t(i)] +
           1;
  }
  i64 out_pixels() const { return out(0) * out(1) * out(2); }
  i64 in_pixels() const { return in[0] * in[1] * in[2]; }
  i64 taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  // Multiply-adds times two of one pass.
  double flops() const {
    return 2.0 * double(n) * double(out_pixels()) * double(filters) * double(taps()) *
           double(channels / groups);
  }
};

// y = conv(x, w) (+ bias[K]) (then ReLU). x, w, bias, y share a dtype.
struct ConvForward {
  Tensor x;
  Tensor w;
  Tensor bias;  // optional
  Tensor y;
  bool relu = false;
};
void conv_forward(const Conv& c, const ConvForward& t);
// dx = conv_transposed(dy, w). All of one dtype.
void conv_backward_data(const Conv& c, const Tensor& dy, const Tensor& w, const Tensor& dx);
// dw = beta dw + correlation of x and dy; dw has x's dtype or is f32. Accumulates in f32.
void conv_backward_weights(const Conv& c, const Tensor& x, const Tensor& dy, const Tensor& dw,
                           double beta);

// The library's name of what it would run for forward, backward data, backward weights: "brgconv:..",
// "ref:..", "naive". Tests look for slow reference implementations.
std::array<std::string, 3> conv_implementations(const Conv& c, DType dtype, Device device);

}  // namespace penstock::kernels
