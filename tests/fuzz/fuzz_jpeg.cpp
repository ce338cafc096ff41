// JPEG glue: any bytes either decode or throw DataError, in strict and tolerant mode, whole, in
// part and reduced.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "data/image/decode.h"
#include "framework/core/check.h"

using namespace penstock;
using namespace penstock::data::image;

namespace {

using Bytes = std::vector<std::uint8_t>;

std::optional<Bytes> decode(Decoder& decoder, std::span<const std::byte> file,
                            const DecodeOptions& options, unsigned how) {
  try {
    const Header header = decoder.open(file, "fuzz", options);
    Region region{0, 0, header.width, header.height};
    if ((how & 8) != 0) {
      region = {header.width / 3, header.height / 3, (header.width + 2) / 3,
                (header.height + 2) / 3};
    }
    const Pixels p = decoder.decode(region, 1 << ((how >> 4) & 3));
    Bytes out;
    for (i64 y = 0; y < p.height; ++y) {
      const std::uint8_t* row = p.data + y * p.stride;
      out.insert(out.end(), row, row + p.width * p.channels);
    }
    return out;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace

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
  options.limits = {.max_pixels = 1 << 18, .max_decode_bytes = 16 << 20};
  static Decoder used;
  Decoder fresh;
  const auto first = decode(used, file, options, how);
  if (decode(fresh, file, options, how) != first) {
    std::abort();
  }
  if (options.strict && first) {
    options.strict = false;
    if (decode(used, file, options, how) != first) {
      std::abort();
    }
  }
  return 0;
}
