#include "framework/io/schema_values.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace penstock::io::schema {
namespace {

[[noreturn]] void wrong(const std::string& expected, const std::string& came) {
  throw ConfigError(format("expected {}, found {}", expected, came.empty() ? "nothing" : "\"" + came + "\""));
}

std::string range_text(const char* what, const Range& r) {
  const bool low = r.low > -1e300;
  const bool high = r.high < 1e300;
  if (low && high) {
    return format("{} from {} to {}", what, number_text(r.low), number_text(r.high));
  }
  if (low) {
    return format("{} {} {}", what, r.open_low ? "above" : "of at least", number_text(r.low));
  }
  return what;
}

// Decimal, as people write it. Leading zeros are octal in some tools and decimal in others.
bool looks_like_number(const std::string& t) {
  std::size_t i = t[0] == '-' || t[0] == '+' ? 1 : 0;
  const std::size_t begin = i;
  while (i < t.size() && t[i] >= '0' && t[i] <= '9') {
    ++i;
  }
  const std::size_t digits = i - begin;
  if (digits > 1 && t[begin] == '0') {
    throw ConfigError(format("\"{}\" could mean an octal number; write it without the leading zero", t));
  }
  std::size_t fraction = 0;
  if (i < t.size() && t[i] == '.') {
    ++i;
    while (i < t.size() && t[i] >= '0' && t[i] <= '9') {
      ++i;
      ++fraction;
    }
  }
  if (digits + fraction == 0) {
    return false;
  }
  if (i < t.size() && (t[i] == 'e' || t[i] == 'E')) {
    ++i;
    if (i < t.size() && (t[i] == '-' || t[i] == '+')) {
      ++i;
    }
    const std::size_t exponent = i;
    while (i < t.size() && t[i] >= '0' && t[i] <= '9') {
      ++i;
    }
    if (i == exponent) {
      return false;
    }
  }
  return i == t.size();
}

double to_double(const std::string& t) {
  double value = 0;
  const char* begin = t.c_str() + (t[0] == '+' ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, t.c_str() + t.size(), value);
  if (error == std::errc::result_out_of_range) {
    throw ConfigError(format("\"{}\" is beyond what a number can be", t));
  }
  return value;
}

// "12 min" -> 12 and "min".
void split_unit(const std::string& text, double& count, std::string& unit, const std::string& expected) {
  std::size_t i = 0;
  while (i < text.size() && (std::isdigit(static_cast<unsigned char>(text[i])) != 0 || text[i] == '.' ||
                             text[i] == '+' || text[i] == '-' ||
                             ((text[i] == 'e' || text[i] == 'E') && i + 1 < text.size() &&
                              (std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0 ||
                               text[i + 1] == '-' || text[i + 1] == '+')))) {
    ++i;
  }
  const std::string number = text.substr(0, i);
  while (i < text.size() && text[i] == ' ') {
    ++i;
  }
  unit = text.substr(i);
  if (number.empty() || !looks_like_number(number)) {
    wrong(expected, text);
  }
  count = to_double(number);
  if (count < 0 || !std::isfinite(count)) {
    wrong(expected, text);
  }
}

}  // namespace

std::string number_text(double value) {
  char buffer[40];
  if (value == std::floor(value) && std::fabs(value) < 1e15) {
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, i64(value));
    return {buffer, end};
  }
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end};
}

std::string scalar_text(const std::string& text) {
  bool plain = !text.empty() && text.front() != ' ' && text.back() != ' ' && text.back() != ':';
  for (std::size_t i = 0; i < text.size() && plain; ++i) {
    const char c = text[i];
    plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '/' ||
            (c == '-' && i > 0) || c == '+' || (c == ' ' && i > 0) || c == '%' ||
            static_cast<unsigned char>(c) >= 0x80;
  }
  plain = plain && text.find(" #") == std::string::npos && text != "null" && text != "true" &&
          text != "false" && text.front() != '%';
  if (plain) {
    return text;
  }
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    if (c == '\n') {
      quoted += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += format("\\x{}{}", "0123456789abcdef"[(c >> 4) & 15], "0123456789abcdef"[c & 15]);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

i64 parse_integer(const std::string& text, const Range& range) {
  const std::string expected = range_text("an integer", range);
  if (text.empty() || !looks_like_number(text)) {
    wrong(expected, text);
  }
  const double value = to_double(text);
  if (value != std::floor(value) || std::fabs(value) > 9e15 || value < range.low || value > range.high) {
    wrong(expected, text);
  }
  return i64(value);
}

double parse_number(const std::string& text, const Range& range) {
  const std::string expected = range_text("a number", range);
  if (text.empty() || !looks_like_number(text)) {
    wrong(expected, text);
  }
  const double value = to_double(text);
  if (!std::isfinite(value) || value < range.low || value > range.high ||
      (range.open_low && value == range.low)) {
    wrong(expected, text);
  }
  return value;
}

bool parse_bool(const std::string& text) {
  if (text == "true") {
    return true;
  }
  if (text == "false") {
    return false;
  }
  wrong("true or false", text);
}

i64 parse_bytes(const std::string& text) {
  static const std::string expected = "bytes, e.g. 512 MiB or 2 GB";
  double count = 0;
  std::string unit;
  split_unit(text, count, unit, expected);
  double scale = 0;
  if (unit.empty() || unit == "B") {
    scale = 1;
  } else if (unit == "KiB") {
    scale = 1024;
  } else if (unit == "MiB") {
    scale = 1024.0 * 1024;
  } else if (unit == "GiB") {
    scale = 1024.0 * 1024 * 1024;
  } else if (unit == "TiB") {
    scale = 1024.0 * 1024 * 1024 * 1024;
  } else if (unit == "KB" || unit == "kB") {
    scale = 1e3;
  } else if (unit == "MB") {
    scale = 1e6;
  } else if (unit == "GB") {
    scale = 1e9;
  } else if (unit == "TB") {
    scale = 1e12;
  } else {
    wrong(expected, text);
  }
  if (count * scale > 9e15) {
    wrong(expected, text);
  }
  return i64(count * scale);
}

double parse_seconds(const std::string& text) {
  static const std::string expected = "a time, e.g. 90 s, 30 min or 2 h";
  double count = 0;
  std::string unit;
  split_unit(text, count, unit, expected);
  if (unit.empty() || unit == "s" || unit == "seconds") {
    return count;
  }
  if (unit == "us") {
    return count * 1e-6;
  }
  if (unit == "ms") {
    return count * 1e-3;
  }
  if (unit == "min" || unit == "minutes") {
    return count * 60;
  }
  if (unit == "h" || unit == "hours") {
    return count * 3600;
  }
  if (unit == "d" || unit == "days") {
    return count * 86400;
  }
  wrong(expected, text);
}

Period parse_period(const std::string& text) {
  static const std::string expected =
      "a period: 500 steps, 2 epochs, 10000 samples, 10 min, 3 %, auto or never";
  if (text == "never" || text == "0") {
    return {};
  }
  if (text == "auto") {
    return {0, Period::Unit::kAuto};
  }
  double count = 0;
  std::string unit;
  split_unit(text, count, unit, expected);
  using Unit = Period::Unit;
  if (unit == "steps" || unit == "step") {
    return {count, Unit::kSteps};
  }
  if (unit == "epochs" || unit == "epoch") {
    return {count, Unit::kEpochs};
  }
  if (unit == "samples" || unit == "sample") {
    return {count, Unit::kSamples};
  }
  if (unit == "%") {
    return {count / 100, Unit::kShare};
  }
  if (unit == "s" || unit == "min" || unit == "h" || unit == "minutes" || unit == "hours" ||
      unit == "seconds") {
    return {parse_seconds(text), Unit::kSeconds};
  }
  wrong(expected, text);
}

}  // namespace penstock::io::schema

namespace penstock::io {

std::string to_string(const Period& p) {
  using schema::number_text;
  switch (p.unit) {
    case Period::Unit::kNever: return "never";
    case Period::Unit::kAuto: return "auto";
    case Period::Unit::kSteps: return number_text(p.count) + " steps";
    case Period::Unit::kEpochs: return number_text(p.count) + " epochs";
    case Period::Unit::kSamples: return number_text(p.count) + " samples";
    case Period::Unit::kSeconds: return number_text(p.count) + " s";
    case Period::Unit::kShare: return number_text(p.count * 100) + " %";
  }
  return "never";
}

}  // namespace penstock::io
