// Inner loops of the resampler, instantiated per instruction-set level; all give the same bits.
#pragma once

#include <cstdint>

#include "data/image/resample.h"
#include "framework/core/machine.h"

namespace penstock::data::image {

constexpr int kWeightBits = 14;
constexpr int kWeightOne = 1 << kWeightBits;
constexpr int kRowBits = 6;  // fractional bits of the vertical result

// out[j] = round(sum_k weights[k] * source[k * stride + j] / 2^8), for j in [0, count).
struct VerticalArguments {
  const std::uint8_t* source = nullptr;
  i64 stride = 0;
  const std::int16_t* weights = nullptr;
  int taps = 0;
  i64 count = 0;
  std::int16_t* out = nullptr;
};

struct KernelTable {
  void (*vertical)(const VerticalArguments& arguments);
  // Lays x.weight out for horizontal().
  void (*pack_horizontal)(AxisWeights& x);
  // out[3 i + c] = round(sum_k weight[i][k] * row[3 (start[i] + k) + c] / 2^20). Reads up to 8
  // values past the last tap and writes up to 16 bytes past the last pixel.
  void (*horizontal)(const std::int16_t* row, const AxisWeights& x, i64 count, std::uint8_t* out);
  // out[i] = in[i] * scale[i % 24] + shift[i % 24].
  void (*normalise)(const std::uint8_t* in, i64 count, const float* scale, const float* shift,
                    float* out);
};

const KernelTable& kernels_for(machine::Isa isa);
void horizontal_gray(const std::int16_t* row, const AxisWeights& x, i64 count, std::uint8_t* out);

}  // namespace penstock::data::image
