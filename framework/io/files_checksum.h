// XXH3-64: finds damage, not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace penstock::io {

class Checksum {
 public:
  Checksum();
  Checksum(Checksum&& other) noexcept;
  Checksum& operator=(Checksum&& other) noexcept;
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  ~Checksum();

  void update(std::span<const std::byte> bytes);
  // Of everything so far; more may follow.
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes);
// Sixteen lower-case hexadecimal digits.
std::string checksum_text(std::uint64_t checksum);

}  // namespace penstock::io
