// EXIF: any bytes give an orientation from 1 to 8.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "data/image/exif.h"

using namespace penstock::data::image;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  for (const int orientation :
       {exif_orientation(bytes), jpeg_orientation(bytes), png_orientation(bytes)}) {
    if (orientation < 1 || orientation > 8) {
      std::abort();
    }
  }
  return 0;
}
