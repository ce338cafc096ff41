#include "framework/io/json_utf8.h"

namespace penstock::io {

Utf8 utf8_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) {
    return {first, 1};
  }
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() - at < length) {
    return {};
  }
  char32_t code = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) {
      return {};
    }
    code = code << 6 | (byte(at + i) & 0x3Fu);
  }
  const bool long_form = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (long_form || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) {
    return {};
  }
  return {code, length};
}

}  // namespace penstock::io
