#include "data/image/name.h"

#include <cstdint>

namespace penstock::data::image {
namespace {

constexpr std::size_t kShown = 400;

// Length of the valid UTF-8 sequence at the front of `text`, 0 when there is none.
std::size_t sequence_length(std::string_view text) {
  const auto at = [&](std::size_t i) { return std::uint8_t(text[i]); };
  const std::uint8_t first = at(0);
  std::size_t length = 1;
  if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
  } else if (first >= 0xE0 && first < 0xF0) {
    length = 3;
  } else if (first >= 0xC2 && first < 0xE0) {
    length = 2;
  } else if (first >= 0x80) {
    return 0;
  }
  if (length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) {
      return 0;
    }
  }
  // Overlong forms, surrogates and code points past U+10FFFF.
  const bool bad =
      length > 2 && ((first == 0xE0 && at(1) < 0xA0) || (first == 0xED && at(1) >= 0xA0) ||
                     (first == 0xF0 && at(1) < 0x90) || (first == 0xF4 && at(1) >= 0x90));
  return bad ? 0 : length;
}

}  // namespace

std::string printable(std::string_view name) {
  std::string out;
  if (name.size() > kShown) {
    out += "...";
    name.remove_prefix(name.size() - kShown);
  }
  while (!name.empty()) {
    const auto byte = std::uint8_t(name.front());
    const std::size_t length = sequence_length(name);
    const bool control = byte < 0x20 || byte == 0x7F;
    // C1 control characters are two bytes, U+0080 to U+009F.
    const bool control_pair = length == 2 && byte == 0xC2 && std::uint8_t(name[1]) < 0xA0;
    if (byte == '\n') {
      out += "\\n";
      name.remove_prefix(1);
    } else if (byte == '"' || byte == '\\') {
      out += '\\';
      out += char(byte);
      name.remove_prefix(1);
    } else if (length == 0 || control || control_pair) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
      name.remove_prefix(1);
    } else {
      out.append(name.substr(0, length));
      name.remove_prefix(length);
    }
  }
  return out;
}

std::string quoted_name(std::string_view name) {
  return "\"" + printable(name) + "\"";
}

}  // namespace penstock::data::image
