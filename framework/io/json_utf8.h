// UTF-8, read strictly: no long forms, no halves of pairs, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace penstock::io {

struct Utf8 {
  char32_t code = 0;
  std::size_t length = 0;  // in bytes; 0 for what is not UTF-8
};
// The character that begins at byte `at`, which is inside `text`.
Utf8 utf8_at(std::string_view text, std::size_t at);

}  // namespace penstock::io
