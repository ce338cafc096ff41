// Strict YAML: the part of it in which a file is what it looks like. Every node knows its place;
// whatever readers of YAML disagree about, or what hides a value, is refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/check.h"

namespace penstock::io::yaml {

inline constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of a file
inline constexpr std::size_t kMostNodes = 100'000;               // scalars, lists, maps
inline constexpr std::size_t kMostLevels = 32;                   // of nesting

// Where something stands, for messages. Without a line: the whole of `file`.
struct Place {
  std::string file;
  int line = 0;    // from 1
  int column = 0;  // from 1, in characters
};
// "file:line:column", or "file".
std::string to_string(const Place& place);

// Throws ConfigError: "file:line:column: message".
[[noreturn]] void fail_at(const Place& place, const std::string& message);

struct Node {
  enum class Kind { kNothing, kScalar, kList, kMap };
  Kind kind = Kind::kNothing;
  std::string text;     // of a scalar
  bool quoted = false;  // a scalar in quotes
  Place place;
  std::vector<Node> keys;   // of a map, in order: scalars, each once
  std::vector<Node> items;  // of a list; of a map, as many as keys
};

// The one document of `text`; kNothing for none. Throws ConfigError with the place for what is no
// YAML or beyond the limits, for anchors, aliases, tags, directives, blocks of text, values over
// several lines, keys that are there twice or no words, and for bytes that are not plain UTF-8
// text.
Node read(std::string_view text, const std::string& name);

// Only the bytes: throws ConfigError for tabs, control characters, what is not UTF-8, and
// characters that are invisible or change the direction of writing.
void check_bytes(std::string_view text, const std::string& name);

}  // namespace penstock::io::yaml
