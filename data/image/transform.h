// What happens to a picture between the file and the batch, as a pure function of (seed, epoch,
// sample): geometry, flips, colour jitter, normalisation, erasing.
//
// Definitions (width and height are of the shown picture, S is `size`):
// - kRandomResizedCrop: up to 10 tries of area a = W H u(area) and aspect r = exp(u(log ratio)),
//   w = round(sqrt(a r)), h = round(sqrt(a / r)); the first that fits is placed uniformly. Else the
//   largest centred crop whose aspect lies within `ratio`. The crop is resized to S x S.
// - kResizeCrop: the shorter side becomes `shorter` (the longer one is scaled and cut to whole
//   pixels; 0 keeps the size), `pad` pixels of `fill` are added on every side, and S x S is taken
//   at a random place (`random_place`) or at the centre, round((side - S) / 2). A picture too small
//   for a centred crop is padded with `fill`; too small for a random one, it is an error.
// - kStretch: the whole picture is resized to S x S.
// - flips: mirrored with the given probabilities.
// - jitter: brightness, contrast, saturation and hue in an order drawn per sample, each on 8-bit
//   values rounded to the nearest and clipped. With f drawn from [max(0, 1 - x), 1 + x]:
//   brightness v f; contrast m + (v - m) f, m the rounded mean luma; saturation y + (v - y) f, y
//   the pixel's luma; hue: the HSV hue moved by a turn's fraction drawn from [-x, x]. Luma is 0.299
//   R + 0.587 G + 0.114 B. One-channel pictures take brightness and contrast only.
// - output: u8, or f32 (v / 255 - mean) / deviation; a rectangle erased with probability
//   `erase.probability`: up to 10 tries of area S S u(area) and log-uniform aspect; filled with
//   `erase.fill` (u8 output) or 0, the mean (f32).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/image/decode.h"
#include "data/image/resample.h"

namespace penstock::data::image {

enum class Geometry : std::uint8_t { kRandomResizedCrop, kResizeCrop, kStretch };

// kMatched: every pixel of the crop decoded exactly and filtered with antialiasing; within one
// level of PIL and torchvision. kFast: chroma repeated, approximate inverse DCT, power-of-two
// reduction inside the decoder and plain bilinear interpolation where less than a factor of two
// remains.
enum class Quality : std::uint8_t { kMatched, kFast };

struct Range {
  double low = 0;
  double high = 0;
};

struct Jitter {
  float brightness = 0;
  float contrast = 0;
  float saturation = 0;
  float hue = 0;  // at most 0.5
  bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

struct Erase {
  float probability = 0;
  Range area{0.02, 0.33};
  Range ratio{0.3, 3.3};
  std::uint8_t fill = 0;
};

struct TransformOptions {
  Geometry geometry = Geometry::kRandomResizedCrop;
  Quality quality = Quality::kMatched;
  i64 size = 224;
  int channels = 3;
  Range area{0.08, 1.0};
  Range ratio{3.0 / 4.0, 4.0 / 3.0};
  i64 shorter = 256;
  i64 pad = 0;
  bool random_place = false;
  std::uint8_t fill = 0;
  float flip_horizontal = 0;
  float flip_vertical = 0;
  Jitter jitter{};
  Erase erase{};
  bool normalise = false;  // f32 output
  std::array<float, 3> mean{0.485F, 0.456F, 0.406F};
  std::array<float, 3> deviation{0.229F, 0.224F, 0.225F};
};

// Throws ConfigError naming the value that cannot be.
void check_options(const TransformOptions& options);

// One sample's geometry. The canvas of `size` x `size` holds the resized picture at columns
// [left, left + x.count) and rows [top, top + y.count); the rest is fill. count 0: all fill.
struct Placement {
  Axis x;
  Axis y;
  i64 left = 0;
  i64 top = 0;
};

// Draws the geometry for a picture of width x height; `name` stands in messages.
Placement place(const TransformOptions& options, const SampleKey& key, i64 width, i64 height,
                std::string_view name);

// Everything between a file's bytes and one sample; keep one per thread.
class Pipeline {
 public:
  // Decodes and transforms `file` into `out`: u8 or f32 [size, size, channels]. Throws DataError
  // naming the file.
  void run(const TransformOptions& options, const DecodeOptions& decode, const SampleKey& key,
           std::span<const std::byte> file, std::string_view name, std::byte* out);
  // The same from a whole decoded picture (scale 1, at the origin).
  void run(const TransformOptions& options, const SampleKey& key, const Pixels& pixels,
           std::string_view name, std::byte* out);
  // Decodes the whole picture; valid until the next call.
  Pixels decode(const DecodeOptions& decode, std::span<const std::byte> file,
                std::string_view name);

 private:
  void finish(const TransformOptions& options, const SampleKey& key, const Placement& placement,
              const Pixels& pixels, std::byte* out);

  Decoder decoder_;
  Resampler resampler_;
  std::vector<std::uint8_t> canvas_;
  std::vector<std::uint8_t> patch_;
};

}  // namespace penstock::data::image
