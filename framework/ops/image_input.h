// The first op of a step on images: bytes become normalised floats on the device.
#pragma once

#include <array>

#include "framework/core/tensor.h"

namespace penstock::ops {

struct ImageInput {
  // Per channel, for pixel values scaled to [0, 1]; the fourth and later channels use the fourth.
  std::array<float, 4> mean{};
  std::array<float, 4> deviation{1, 1, 1, 1};
  DType dtype = DType::f32;  // of the result; f64 on the CPU only
};
// x [N, ..., C], u8 or f32: (x / 255 - mean[c]) / deviation[c] for u8; f32 is taken as already
// scaled to [0, 1]. No gradient: images are data.
Tensor image_input(const Tensor& x, const ImageInput& options);

}  // namespace penstock::ops
