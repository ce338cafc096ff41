// Crop, resize and mirror in one pass over decoded pixels, in fixed point.
//
// The filter is the triangle of bilinear interpolation. With antialiasing it is widened to the
// reduction factor, which is what PIL's BILINEAR and torchvision's antialias=True do; without, it
// has two taps whatever the factor. Weights have 14 fractional bits and sum to exactly one, so flat
// colours stay flat; the vertical result keeps 6 fractional bits. Everything is integer arithmetic:
// the result is the same on every instruction-set level. It differs from PIL's (which rounds to
// whole levels between its passes) by at most one level.
#pragma once

#include <cstdint>
#include <vector>

#include "data/image/decode.h"
#include "framework/core/target.h"

namespace penstock::data::image {

// One axis of a resize, in full-resolution coordinates of the shown picture: the box [begin, end)
// is resized to `full` positions, of which [first, first + count) are wanted. Taps are confined to
// [low, high), e.g. the crop itself.
struct Axis {
  double begin = 0;
  double end = 0;
  i64 low = 0;
  i64 high = 0;
  i64 full = 0;
  i64 first = 0;
  i64 count = 0;
  bool mirrored = false;  // the wanted positions in reverse order
};

// Source pixels [first, second) that the axis reads with or without antialiasing.
struct Span {
  i64 first = 0;
  i64 second = 0;
};
Span taps_of(const Axis& axis, bool antialias);

struct ResampleRequest {
  Pixels source;
  Axis x;
  Axis y;
  bool antialias = true;
  std::uint8_t* out = nullptr;  // u8 [y.count, x.count, channels]
};

// The filter of one axis over `size` source pixels.
struct AxisWeights {
  int taps = 0;                      // per position, even
  std::vector<std::int32_t> start;   // first source pixel of each position
  std::vector<std::int16_t> weight;  // [positions][taps], 14 fractional bits
  std::vector<std::int32_t> packed;  // scratch for vector code
};

// Keeps its tables from call to call; one per thread.
class Resampler {
 public:
  // Writes out; throws Error when a request is not consistent with its source.
  void run(const ResampleRequest& request);

 private:
  AxisWeights x_;
  AxisWeights y_;
  std::vector<std::int16_t> row_;
  std::vector<std::uint8_t> line_;
  std::vector<float> wide_;
};

// out[i] = in[i] * scale[i % 3] + shift[i % 3] for 3 channels (period 1 for 1 channel): u8 pixels
// to normalised floats. `pixels` counts pixels.
struct Normalise {
  float scale[3] = {1, 1, 1};
  float shift[3] = {0, 0, 0};
};
void normalise(const std::uint8_t* in, i64 pixels, int channels, const Normalise& by, float* out);

}  // namespace penstock::data::image
