// PNG glue: any bytes either decode or throw DataError, in strict and tolerant mode, whole, in part
// and reduced.
#include <cstddef>
#include <cstdint>

#include "data/image/decode.h"
#include "framework/core/check.h"

using namespace penstock;
using namespace penstock::data::image;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) {
    return 0;
  }
  // The last byte chooses what is done.
  const unsigned how = data[size - 1];
  const std::span file(reinterpret_cast<const std::byte*>(data), size - 1);
  DecodeOptions options;
  options.channels = (how & 1) != 0 ? 1 : 3;
  options.strict = (how & 2) != 0;
  options.fast = (how & 4) != 0;
  options.limits = {.max_pixels = 1 << 20, .max_decode_bytes = 16 << 20};
  static Decoder decoder;
  try {
    const Header header = decoder.open(file, "fuzz", options);
    Region region{0, 0, header.width, header.height};
    if ((how & 8) != 0) {
      region = {header.width / 3, header.height / 3, (header.width + 2) / 3,
                (header.height + 2) / 3};
    }
    const Pixels p = decoder.decode(region, 1 << ((how >> 4) & 3));
    // Touch every pixel, so that a wrong size shows.
    volatile std::uint8_t sink = 0;
    for (i64 y = 0; y < p.height; ++y) {
      for (i64 x = 0; x < p.width * p.channels; ++x) {
        sink = std::uint8_t(sink + p.data[y * p.stride + x]);
      }
    }
  } catch (const DataError&) {
  }
  return 0;
}
