#include "data/image/decode.h"

#include <cstring>

#include "data/image/codec.h"
#include "data/image/exif.h"
#include "data/image/name.h"
#include "framework/core/check.h"

namespace penstock::data::image {
namespace {

// A buffer that one huge picture has grown is given back.
constexpr std::size_t kKeepBytes = std::size_t{64} << 20;

// The stored region behind a shown one, for a stored picture of w x h.
Region stored_region(const Region& shown, int orientation, i64 w, i64 h) {
  Region r = shown;
  if (swaps_axes(orientation)) {
    r = {shown.y, shown.x, shown.height, shown.width};
  }
  const bool mirror_x =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  if (mirror_x) {
    r.x = w - r.x - r.width;
  }
  if (mirror_y) {
    r.y = h - r.y - r.height;
  }
  return r;
}

// Pixels turned into shown order; `w`, `h` are the stored picture's size at full resolution.
Pixels turn(const Pixels& stored, int orientation, i64 w, i64 h, Scratch& out) {
  const bool swap = swaps_axes(orientation);
  const bool mirror_x =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Pixels shown = stored;
  const i64 x = mirror_x ? w - stored.x - stored.width * stored.scale : stored.x;
  const i64 y = mirror_y ? h - stored.y - stored.height * stored.scale : stored.y;
  shown.width = swap ? stored.height : stored.width;
  shown.height = swap ? stored.width : stored.height;
  shown.x = swap ? y : x;
  shown.y = swap ? x : y;
  shown.stride = shown.width * stored.channels;
  const auto bytes = std::size_t(shown.stride * shown.height);
  if (out.size() < bytes) {
    out.resize(bytes);
  }
  const i64 channels = stored.channels;
  for (i64 row = 0; row < stored.height; ++row) {
    const std::uint8_t* from = stored.data + row * stored.stride;
    const i64 v = mirror_y ? stored.height - 1 - row : row;
    for (i64 column = 0; column < stored.width; ++column) {
      const i64 u = mirror_x ? stored.width - 1 - column : column;
      std::uint8_t* to =
          out.data() + (swap ? u * shown.stride + v * channels : v * shown.stride + u * channels);
      for (i64 c = 0; c < channels; ++c) {
        to[c] = from[column * channels + c];
      }
    }
  }
  shown.data = out.data();
  return shown;
}

}  // namespace

Codec detect(std::span<const std::byte> file) {
  constexpr unsigned char kJpegMagic[] = {0xFF, 0xD8, 0xFF};
  constexpr unsigned char kPngMagic[] = {0x89, 'P', 'N', 'G', 0x0D, 0x0A, 0x1A, 0x0A};
  if (file.size() >= 3 && std::memcmp(file.data(), kJpegMagic, 3) == 0) {
    return Codec::kJpeg;
  }
  if (file.size() >= 8 && std::memcmp(file.data(), kPngMagic, 8) == 0) {
    return Codec::kPng;
  }
  return Codec::kUnknown;
}

void check_size(std::string_view name, i64 width, i64 height, const Limits& limits) {
  if (width <= 0 || height <= 0) {
    throw DataError(
        format("{}: picture of {} x {} has no pixels", quoted_name(name), width, height));
  }
  // Widths and heights stay below 2^31, so the product fits.
  if (width * height > limits.max_pixels) {
    throw DataError(format(
        "{}: picture of {} x {} exceeds the limit of {} pixels; raise data.max_pixels if it is "
        "meant to be that large",
        quoted_name(name), width, height, limits.max_pixels));
  }
}

void check_bytes(std::string_view name, i64 bytes, const Limits& limits) {
  if (bytes > limits.max_decode_bytes) {
    throw DataError(format("{}: decoding needs {}, more than the limit of {}", quoted_name(name),
                           bytes_text(double(bytes)), bytes_text(double(limits.max_decode_bytes))));
  }
}

struct Decoder::State {
  JpegCodec jpeg;
  PngCodec png;
  Codec codec = Codec::kUnknown;
  StoredHeader stored;
  DecodeOptions options;
  std::string name;
  int orientation = 1;
  Scratch pixels;
  Scratch turned;
};

Decoder::Decoder() : state_(std::make_unique<State>()) {}
Decoder::~Decoder() = default;

Header Decoder::open(std::span<const std::byte> file, std::string_view name,
                     const DecodeOptions& options) {
  State& s = *state_;
  check(options.channels == 1 || options.channels == 3,
        "image decode: {} channels asked for; expected 1 or 3", options.channels);
  s.options = options;
  s.name.assign(name);
  s.codec = detect(file);
  for (Scratch* scratch : {&s.pixels, &s.turned}) {
    if (scratch->size() > kKeepBytes) {
      Scratch().swap(*scratch);
    }
  }
  switch (s.codec) {
    case Codec::kJpeg: s.stored = s.jpeg.open(file, name, options); break;
    case Codec::kPng: s.stored = s.png.open(file, name, options); break;
    case Codec::kUnknown:
      throw DataError(format(
          "{}: {}", quoted_name(name),
          file.empty() ? "the file is empty" : "neither a JPEG nor a PNG, by its first bytes"));
  }
  s.orientation = options.apply_orientation ? s.stored.orientation : 1;
  const bool swap = swaps_axes(s.orientation);
  return {.codec = s.codec,
          .width = swap ? s.stored.height : s.stored.width,
          .height = swap ? s.stored.width : s.stored.height,
          .orientation = s.orientation};
}

Pixels Decoder::decode(const Region& region, int reduce) {
  State& s = *state_;
  check(s.codec != Codec::kUnknown, "image decode: no picture is open");
  const bool swap = swaps_axes(s.orientation);
  const i64 width = swap ? s.stored.height : s.stored.width;
  const i64 height = swap ? s.stored.width : s.stored.height;
  check(region.width > 0 && region.height > 0 && region.x >= 0 && region.y >= 0 &&
            region.x <= width - region.width && region.y <= height - region.height,
        "image decode: region {} x {} at ({}, {}) is not inside the picture of {} x {}",
        region.width, region.height, region.x, region.y, width, height);
  check(reduce == 1 || reduce == 2 || reduce == 4 || reduce == 8,
        "image decode: reduction by {}; expected 1, 2, 4 or 8", reduce);
  const Region stored = stored_region(region, s.orientation, s.stored.width, s.stored.height);
  const Codec codec = s.codec;
  s.codec = Codec::kUnknown;  // one decode per open
  const Pixels pixels = codec == Codec::kJpeg ? s.jpeg.decode(stored, reduce, s.pixels)
                                              : s.png.decode(stored, s.pixels);
  if (s.orientation == 1) {
    return pixels;
  }
  return turn(pixels, s.orientation, s.stored.width, s.stored.height, s.turned);
}

}  // namespace penstock::data::image
