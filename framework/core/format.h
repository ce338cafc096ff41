// Message formatting: `format("{} of {:.2f}", a, b)`. Covers what messages need, without dragging
// a formatting library into every header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "framework/core/target.h"

namespace penstock {

// One argument of format(), type-erased. Class types join by providing
// `std::string to_string(const T&)` in their own namespace.
class FormatArg {
 public:
  template <class T>
  FormatArg(const T& value) {  // NOLINT(google-explicit-constructor): an argument list needs it
    if constexpr (std::is_same_v<T, bool>) {
      kind_ = Kind::kText;
      text_ = value ? "true" : "false";
    } else if constexpr (std::is_same_v<T, char>) {
      kind_ = Kind::kText;
      owned_.assign(1, value);
      text_ = owned_;
    } else if constexpr (std::is_floating_point_v<T>) {
      kind_ = Kind::kDouble;
      double_ = double(value);
    } else if constexpr (std::is_integral_v<T> && std::is_unsigned_v<T>) {
      kind_ = Kind::kUnsigned;
      unsigned_ = std::uint64_t(value);
    } else if constexpr (std::is_integral_v<T>) {
      kind_ = Kind::kSigned;
      signed_ = std::int64_t(value);
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      kind_ = Kind::kText;
      text_ = std::string_view(value);
    } else {
      kind_ = Kind::kText;
      owned_ = to_string(value);
      text_ = owned_;
    }
  }
  FormatArg(const FormatArg&) = delete;
  FormatArg& operator=(const FormatArg&) = delete;

  // Appends the value under `spec`, the text after ':' inside the braces (printf-like: ".3f", "x").
  void append_to(std::string& out, std::string_view spec) const;

 private:
  enum class Kind : std::uint8_t { kSigned, kUnsigned, kDouble, kText };
  Kind kind_;
  union {
    std::int64_t signed_;
    std::uint64_t unsigned_;
    double double_;
  };
  std::string owned_;
  std::string_view text_;
};

// Replaces each "{}" or "{:spec}" in `text` by the next argument; "{{" is a brace.
std::string vformat(std::string_view text, const FormatArg* args, std::size_t count);

template <class... Args>
std::string format(std::string_view text, const Args&... args) {
  const std::array<FormatArg, sizeof...(Args)> erased{FormatArg(args)...};
  return vformat(text, erased.data(), erased.size());
}

// "1.5 GiB", "312 KiB": bytes for people.
std::string bytes_text(double bytes);
// "9.8k", "2.4M": counts and rates for people.
std::string count_text(double value);
// "1:05:09", "4.2 s", "12 ms": durations for people.
std::string seconds_text(double seconds);

}  // namespace penstock
