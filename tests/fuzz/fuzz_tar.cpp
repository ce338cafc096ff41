// Tar: any bytes either list members that lie inside the file or throw DataError.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "data/image/tar.h"
#include "framework/core/check.h"

using namespace penstock;
using namespace penstock::data::image;

namespace {

// Makes the checksum of every block that calls itself a header hold, so that what lies behind that
// check is reached.
void seal(std::vector<std::uint8_t>& file) {
  for (std::size_t at = 0; at + 512 <= file.size(); at += 512) {
    std::uint8_t* block = file.data() + at;
    if (std::memcmp(block + 257, "ustar", 5) == 0) {
      std::memset(block + 148, ' ', 8);
      unsigned sum = 0;
      for (int i = 0; i < 512; ++i) {
        sum += block[i];
      }
      char text[8];
      std::snprintf(text, sizeof text, "%06o", sum);
      std::memcpy(block + 148, text, 7);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  std::vector<std::uint8_t> file(input, input + size);
  seal(file);
  const std::uint8_t* data = file.data();
  const auto read = [=](i64 offset, std::span<std::byte> to) {
    if (offset < 0 || offset > i64(size) || to.size() > size - std::size_t(offset)) {
      std::abort();
    }
    std::memcpy(to.data(), data + offset, to.size());
  };
  const auto member = [size](const TarMember& m) {
    if (m.offset < 0 || m.size < 0 || m.offset > i64(size) || m.size > i64(size) - m.offset) {
      std::abort();
    }
  };
  try {
    read_tar({.name = "fuzz", .bytes = i64(size), .read = read}, member);
  } catch (const DataError&) {
  }
  return 0;
}
