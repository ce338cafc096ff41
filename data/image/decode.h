// JPEG and PNG to 8-bit pixels: only the region that is wanted, into memory that is used again.
//
// Conventions, the same in training and validation:
// - The codec follows from the first bytes, never from the name.
// - Colour: gray 128 becomes (128, 128, 128); alpha is dropped, not blended; palettes are expanded.
//   16-bit PNG values v become round(v / 257). ICC profiles and gamma are not applied.
// - CMYK and YCCK JPEGs hold inverted values, as Adobe writes them: R = C K / 255, and so on.
// - One channel: luma, Y of a YCbCr JPEG, else (19595 R + 38470 G + 7471 B + 32768) >> 16.
// - EXIF orientation is applied unless switched off; sizes and regions are of the shown picture.
// - A decoder warning is an error unless `strict` is off: a damaged or cut file never yields a half
//   gray picture. A region decode cannot see damage in rows below the region, but does see a
//   missing end of file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "framework/core/target.h"

namespace penstock::data::image {

enum class Codec : std::uint8_t { kUnknown, kJpeg, kPng };
// From the magic bytes.
Codec detect(std::span<const std::byte> file);

// What a file may ask for; checked against its header before anything is allocated.
struct Limits {
  i64 max_pixels = 100'000'000;
  i64 max_decode_bytes = i64{1} << 30;  // pixels of the region and coefficients of a progressive
};

struct DecodeOptions {
  int channels = 3;  // 3 (RGB) or 1 (luma)
  bool apply_orientation = true;
  bool strict = true;
  bool fast = false;  // JPEG: approximate inverse DCT, chroma repeated instead of interpolated
  Limits limits{};
};

struct Header {
  Codec codec = Codec::kUnknown;
  i64 width = 0;  // pixels as shown
  i64 height = 0;
  int orientation = 1;  // 1 when not applied
};

// Pixels [x, x + width) x [y, y + height) of the shown picture.
struct Region {
  i64 x = 0;
  i64 y = 0;
  i64 width = 0;
  i64 height = 0;
};

// Decoded pixels, u8 interleaved. The pixel at column i spans [x + i * scale, x + (i + 1) * scale)
// of the shown picture's full resolution; the region wanted lies inside.
struct Pixels {
  const std::uint8_t* data = nullptr;
  i64 stride = 0;  // bytes from row to row
  i64 width = 0;
  i64 height = 0;
  int channels = 0;
  int scale = 1;
  i64 x = 0;
  i64 y = 0;
};

// One picture at a time; keep one per thread. After the largest picture has been seen, decoding a
// JPEG allocates nothing but the library's own work space.
class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Reads the header. `file` must live until decode() has returned; `name` stands in messages.
  // Throws DataError naming the file: unknown codec, damaged header, over a limit.
  Header open(std::span<const std::byte> file, std::string_view name, const DecodeOptions& options);

  // Decodes the opened picture's region once, at 1 / reduce of its size (1, 2, 4 or 8; PNG ignores
  // it). The pixels are valid until the next open(). Throws DataError naming the file.
  Pixels decode(const Region& region, int reduce = 1);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::data::image
