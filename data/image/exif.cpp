#include "data/image/exif.h"

#include <cstdint>
#include <cstring>

namespace penstock::data::image {
namespace {

// Cameras write some dozens of entries; a longer directory is not worth reading.
constexpr std::uint32_t kMaxEntries = 1024;

std::uint32_t byte_at(std::span<const std::byte> data, std::size_t at) {
  return std::to_integer<std::uint32_t>(data[at]);
}

// Integers of the byte order that the TIFF header names.
struct Tiff {
  std::span<const std::byte> data;
  bool little = false;

  bool holds(std::uint64_t at, std::uint64_t count) const {
    return at <= data.size() && count <= data.size() - at;
  }
  std::uint32_t u16(std::size_t at) const {
    const std::uint32_t a = byte_at(data, at);
    const std::uint32_t b = byte_at(data, at + 1);
    return little ? a | (b << 8) : (a << 8) | b;
  }
  std::uint32_t u32(std::size_t at) const {
    return little ? u16(at) | (u16(at + 2) << 16) : (u16(at) << 16) | u16(at + 2);
  }
};

}  // namespace

int exif_orientation(std::span<const std::byte> data) {
  Tiff tiff{data};
  if (data.size() < 8) {
    return 1;
  }
  const bool intel = byte_at(data, 0) == 'I' && byte_at(data, 1) == 'I';
  const bool motorola = byte_at(data, 0) == 'M' && byte_at(data, 1) == 'M';
  tiff.little = intel;
  if ((!intel && !motorola) || tiff.u16(2) != 42) {
    return 1;
  }
  const std::uint64_t directory = tiff.u32(4);
  if (!tiff.holds(directory, 2)) {
    return 1;
  }
  const std::uint32_t count = tiff.u16(std::size_t(directory));
  if (count > kMaxEntries || !tiff.holds(directory + 2, std::uint64_t(count) * 12)) {
    return 1;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t entry = std::size_t(directory) + 2 + std::size_t(i) * 12;
    constexpr std::uint32_t kOrientation = 0x0112;
    constexpr std::uint32_t kShort = 3;
    if (tiff.u16(entry) == kOrientation) {
      const bool single = tiff.u16(entry + 2) == kShort && tiff.u32(entry + 4) == 1;
      const std::uint32_t value = tiff.u16(entry + 8);
      return single && value >= 1 && value <= 8 ? int(value) : 1;
    }
  }
  return 1;
}

int jpeg_orientation(std::span<const std::byte> file) {
  std::size_t at = 2;  // after SOI
  while (at + 4 <= file.size()) {
    if (byte_at(file, at) != 0xFF) {
      return 1;  // not a marker: the decoder will say what is wrong
    }
    const std::uint32_t marker = byte_at(file, at + 1);
    if (marker == 0xFF) {
      ++at;  // fill byte
      continue;
    }
    const bool bare = marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8);
    if (bare) {
      at += 2;
      continue;
    }
    constexpr std::uint32_t kApp1 = 0xE1;
    constexpr std::uint32_t kStartOfScan = 0xDA;
    constexpr std::uint32_t kEndOfImage = 0xD9;
    if (marker == kStartOfScan || marker == kEndOfImage) {
      return 1;
    }
    const std::size_t length = (byte_at(file, at + 2) << 8) | byte_at(file, at + 3);
    if (length < 2 || length > file.size() - at - 2) {
      return 1;
    }
    constexpr std::size_t kName = 6;  // "Exif" and two zeros
    const auto body = file.subspan(at + 4, length - 2);
    if (marker == kApp1 && body.size() >= kName && std::memcmp(body.data(), "Exif\0", kName) == 0) {
      return exif_orientation(body.subspan(kName));
    }
    at += 2 + length;
  }
  return 1;
}

int png_orientation(std::span<const std::byte> file) {
  constexpr std::size_t kSignature = 8;
  constexpr std::size_t kAround = 12;  // length, type and checksum of a chunk
  const Tiff chunks{file, false};      // PNG is big-endian
  std::size_t at = kSignature;
  while (chunks.holds(at, kAround)) {
    const std::size_t length = chunks.u32(at);
    const bool is_exif = std::memcmp(file.data() + at + 4, "eXIf", 4) == 0;
    const bool is_pixels = std::memcmp(file.data() + at + 4, "IDAT", 4) == 0;
    if (is_pixels || !chunks.holds(at + kAround, length)) {
      return 1;
    }
    if (is_exif) {
      return exif_orientation(file.subspan(at + 8, length));
    }
    at += kAround + length;
  }
  return 1;
}

}  // namespace penstock::data::image
