#include "framework/measure/escape.h"

#include <array>
#include <cstdint>

#include "framework/core/format.h"

namespace penstock::measure {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Decoded {
  std::uint32_t code = 0;
  std::size_t length = 1;  // bytes taken; 1 for a broken sequence
  bool valid = false;
};

// One scalar value of UTF-8: shortest form only, no surrogates, at most U+10FFFF.
Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return std::uint32_t(std::uint8_t(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1, true};
  }
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) {
    return {};
  }
  std::uint32_t code = first & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) {
      return {};
    }
    code = code << 6 | (byte(i) & 0x3F);
  }
  static constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
    return {};
  }
  return {code, length, true};
}

// Characters that a viewer must not be handed: they hide or reorder what stands beside them.
bool is_deceptive(std::uint32_t code) {
  return (code >= 0x7F && code <= 0x9F) || code == 0x61C || (code >= 0x200B && code <= 0x200F) ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) ||
         code == 0xFEFF || (code & 0xFFFE) == 0xFFFE || (code >= 0xFDD0 && code <= 0xFDEF);
}

void append_markup(std::string& out, std::uint32_t code, std::string_view bytes) {
  switch (code) {
    case '&': out += "&amp;"; return;
    case '<': out += "&lt;"; return;
    case '>': out += "&gt;"; return;
    case '"': out += "&quot;"; return;
    case '\'': out += "&#39;"; return;
    case '\t':
    case '\n':
    case '\r': out += ' '; return;
    default: out += code < 0x20 ? kReplacement : bytes;
  }
}

void append_json(std::string& out, std::uint32_t code, std::string_view bytes) {
  switch (code) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\t': out += "\\t"; return;
    default:
      // Line separators end a line for JavaScript; the three markup characters end a <script>.
      if (code < 0x20 || code == '<' || code == '>' || code == '&' || code == '\'' ||
          code == 0x2028 || code == 0x2029) {
        std::string hex = format("{:x}", code);
        out += "\\u";
        out.append(4 - hex.size(), '0');
        out += hex;
      } else {
        out += bytes;
      }
  }
}

}  // namespace

std::string escape(std::string_view text, Syntax syntax, std::size_t limit) {
  const bool cut = text.size() > limit;
  if (cut) {
    text = text.substr(0, limit);
    // Do not cut inside a character: drop the bytes of an unfinished one.
    while (!text.empty() && (std::uint8_t(text.back()) & 0xC0) == 0x80) {
      text.remove_suffix(1);
    }
    if (!text.empty() && std::uint8_t(text.back()) >= 0xC0) {
      text.remove_suffix(1);
    }
  }
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  while (!text.empty()) {
    const Decoded d = decode(text);
    if (!d.valid || is_deceptive(d.code)) {
      out += kReplacement;
    } else if (syntax == Syntax::kMarkup) {
      append_markup(out, d.code, text.substr(0, d.length));
    } else {
      append_json(out, d.code, text.substr(0, d.length));
    }
    text.remove_prefix(d.length);
  }
  if (cut) {
    out += "\xE2\x80\xA6";  // an ellipsis
  }
  return out;
}

}  // namespace penstock::measure
