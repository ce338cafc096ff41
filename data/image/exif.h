// The EXIF orientation of a picture: how stored rows and columns are to be shown.
#pragma once

#include <cstddef>
#include <span>

namespace penstock::data::image {

// Orientation 1 to 8 of the TIFF structure that an EXIF block holds (Exif 2.32, tag 0x0112 of
// IFD0); 1 when the tag is absent or anything about the block is not as the format says.
int exif_orientation(std::span<const std::byte> tiff);

// The same for a whole JPEG file: looks through the marker segments before the first scan for
// APP1 "Exif". Never throws, never reads outside `file`.
int jpeg_orientation(std::span<const std::byte> file);
// The same for a whole PNG file: its eXIf chunk, when that stands before the pixels.
int png_orientation(std::span<const std::byte> file);

// Whether rows and columns change places (orientations 5 to 8).
constexpr bool swaps_axes(int orientation) {
  return orientation >= 5;
}

}  // namespace penstock::data::image
