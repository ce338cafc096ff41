#include "framework/io/files_checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::io {

struct Checksum::State {
  XXH3_state_t xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh);
}
Checksum::Checksum(Checksum&& other) noexcept = default;
Checksum& Checksum::operator=(Checksum&& other) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::uint64_t Checksum::digest() const {
  return XXH3_64bits_digest(&state_->xxh);
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string checksum_text(std::uint64_t checksum) {
  std::string text(16, '0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = "0123456789abcdef"[(checksum >> (60 - 4 * i)) & 15];
  }
  return text;
}

}  // namespace penstock::io
