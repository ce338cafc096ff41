#include "framework/core/format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace penstock {
namespace {

std::string printf_number(std::string_view spec, double value) {
  // `spec` comes from our own sources, never from a file; only these forms are used.
  std::string pattern = "%" + std::string(spec);
  std::array<char, 64> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), pattern.c_str(), value);
  return {buffer.data(), std::size_t(std::max(0, std::min<int>(length, int(buffer.size()) - 1)))};
}

template <class T>
void append_chars(std::string& out, T value, int base = 10) {
  std::array<char, 72> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, base).ptr;
  out.append(buffer.data(), end);
}

}  // namespace

void FormatArg::append_to(std::string& out, std::string_view spec) const {
  const bool hex = spec == "x";
  switch (kind_) {
    case Kind::kText: out += text_; return;
    case Kind::kSigned:
      if (!spec.empty() && !hex) {
        out += printf_number(spec, double(signed_));
      } else {
        append_chars(out, signed_, hex ? 16 : 10);
      }
      return;
    case Kind::kUnsigned:
      if (!spec.empty() && !hex) {
        out += printf_number(spec, double(unsigned_));
      } else {
        append_chars(out, unsigned_, hex ? 16 : 10);
      }
      return;
    case Kind::kDouble:
      if (!spec.empty()) {
        out += printf_number(spec, double_);
      } else {
        std::array<char, 64> buffer{};
        const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), double_).ptr;
        out.append(buffer.data(), end);
      }
      return;
  }
}

std::string vformat(std::string_view text, const FormatArg* args, std::size_t count) {
  std::string out;
  out.reserve(text.size() + 16 * count);
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' && i + 1 < text.size() && text[i + 1] == '{') {
      out += '{';
      ++i;
    } else if (text[i] == '}' && i + 1 < text.size() && text[i + 1] == '}') {
      out += '}';
      ++i;
    } else if (text[i] == '{') {
      const std::size_t close = text.find('}', i);
      if (close == std::string_view::npos) {
        out += text.substr(i);
        break;
      }
      std::string_view spec = text.substr(i + 1, close - i - 1);
      if (!spec.empty() && spec.front() == ':') {
        spec.remove_prefix(1);
      }
      if (next < count) {
        args[next++].append_to(out, spec);
      } else {
        out += "{}";
      }
      i = close;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::fabs(bytes) >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return format(unit == 0 ? "{:.0f} {}" : "{:.3g} {}", bytes, kUnits[unit]);
}

std::string count_text(double value) {
  static constexpr std::array<const char*, 5> kUnits = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  while (std::fabs(value) >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return format("{:.3g}{}", value, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 0.001) {
    return format("{:.3g} us", seconds * 1e6);
  }
  if (seconds < 1) {
    return format("{:.3g} ms", seconds * 1e3);
  }
  if (seconds < 60) {
    return format("{:.3g} s", seconds);
  }
  const i64 whole = i64(std::llround(seconds));
  std::string minutes = format("{:02.0f}:{:02.0f}", double(whole / 60 % 60), double(whole % 60));
  return whole >= 3600 ? format("{}:{}", whole / 3600, minutes) : minutes;
}

}  // namespace penstock
