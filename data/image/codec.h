// The two codecs behind Decoder; each wraps its library and keeps that library's error jumps
// inside.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/image/decode.h"

namespace penstock::data::image {

// Stored size (before orientation) and the orientation that the file names.
struct StoredHeader {
  i64 width = 0;
  i64 height = 0;
  int orientation = 1;
};

// Bytes that grow as needed and are used again for the next picture.
using Scratch = std::vector<std::uint8_t>;

// Throws DataError when the picture exceeds the pixel limit or has no pixels.
void check_size(std::string_view name, i64 width, i64 height, const Limits& limits);
// Throws DataError when decoding would need more than the byte limit.
void check_bytes(std::string_view name, i64 bytes, const Limits& limits);

class JpegCodec {
 public:
  JpegCodec();
  ~JpegCodec();
  JpegCodec(const JpegCodec&) = delete;
  JpegCodec& operator=(const JpegCodec&) = delete;
  StoredHeader open(std::span<const std::byte> file, std::string_view name,
                    const DecodeOptions& options);
  // `region` in stored coordinates; pixels are written to `out`, which grows.
  Pixels decode(const Region& region, int reduce, Scratch& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class PngCodec {
 public:
  PngCodec();
  ~PngCodec();
  PngCodec(const PngCodec&) = delete;
  PngCodec& operator=(const PngCodec&) = delete;
  StoredHeader open(std::span<const std::byte> file, std::string_view name,
                    const DecodeOptions& options);
  Pixels decode(const Region& region, Scratch& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::data::image
