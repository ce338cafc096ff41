#include "framework/io/schema_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "framework/io/config_yaml.h"
#include "framework/io/files.h"
#include "framework/io/json_utf8.h"

namespace penstock::io::schema {
namespace {

constexpr double kMostExact = 9e15;  // integers up to here are exact as doubles
constexpr double kMostSeconds = 36525 * 86400.0;

[[noreturn]] void wrong(const std::string& expected, const std::string& came,
                        const char* hint = "") {
  throw ConfigError(format("expected {}, found {}{}", expected,
                           came.empty() ? "nothing" : in_quotes(came), hint));
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::size_t digits_end(const std::string& t, std::size_t from) {
  while (from < t.size() && is_digit(t[from])) {
    ++from;
  }
  return from;
}

// Decimal, as people write it: [+-]digits[.digits][e[+-]digits], whatever the locale.
bool is_decimal(const std::string& t) {
  std::size_t i = !t.empty() && (t[0] == '-' || t[0] == '+') ? 1 : 0;
  std::size_t digits = digits_end(t, i) - i;
  i += digits;
  if (i < t.size() && t[i] == '.') {
    const std::size_t end = digits_end(t, i + 1);
    digits += end - i - 1;
    i = end;
  }
  if (digits == 0) {
    return false;
  }
  if (i < t.size() && (t[i] == 'e' || t[i] == 'E')) {
    ++i;
    i += i < t.size() && (t[i] == '-' || t[i] == '+') ? 1 : 0;
    const std::size_t end = digits_end(t, i);
    if (end == i) {
      return false;
    }
    i = end;
  }
  return i == t.size();
}

// 010 is eight in some tools and ten in others.
void check_leading_zero(const std::string& t) {
  const std::size_t i = t[0] == '-' || t[0] == '+' ? 1 : 0;
  if (digits_end(t, i) - i > 1 && t[i] == '0') {
    throw ConfigError(
        format("{} could mean an octal number; write it without the leading zero", in_quotes(t)));
  }
}

// Why a text that looks like a number to some is none here; "" when there is nothing to say.
const char* number_hint(const std::string& t) {
  const auto has = [&](const char* characters) {
    return t.find_first_of(characters) != std::string::npos;
  };
  const std::size_t i = !t.empty() && (t[0] == '-' || t[0] == '+') ? 1 : 0;
  if (t.size() > i + 1 && t[i] == '0' &&
      std::string_view("xXoObB").find(t[i + 1]) != std::string_view::npos) {
    return "; numbers are decimal";
  }
  if (t.size() > i && is_digit(t[i]) && has("_,' ")) {
    return "; write digits without separators, and a point before decimals";
  }
  return "";
}

double to_double(const std::string& t) {
  double value = 0;
  const char* begin = t.c_str() + (t[0] == '+' ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, t.c_str() + t.size(), value);
  if (error != std::errc{}) {
    throw ConfigError(format("{} is beyond what a number can be", in_quotes(t)));
  }
  return value;
}

struct Quantity {
  double count = 0;
  std::string unit;
};
// "12 min" -> 12 and "min". Not negative.
Quantity parse_quantity(const std::string& text, const std::string& expected) {
  std::size_t i = 0;
  while (i < text.size()) {
    const bool exponent = (text[i] == 'e' || text[i] == 'E') && i > 0 && i + 1 < text.size() &&
                          (is_digit(text[i + 1]) || text[i + 1] == '-' || text[i + 1] == '+');
    if (!is_digit(text[i]) && text[i] != '.' && text[i] != '+' && text[i] != '-' && !exponent) {
      break;
    }
    ++i;
  }
  const std::string number = text.substr(0, i);
  const std::size_t unit = text.find_first_not_of(' ', i);
  if (!is_decimal(number)) {
    wrong(expected, text);
  }
  check_leading_zero(number);
  const double count = to_double(number);
  if (count < 0) {
    wrong(expected, text);
  }
  return {count, unit == std::string::npos ? "" : text.substr(unit)};
}

template <std::size_t N>
const double* scale_of(const std::array<std::pair<const char*, double>, N>& units,
                       const std::string& unit) {
  const auto it =
      std::find_if(units.begin(), units.end(), [&](const auto& u) { return u.first == unit; });
  return it == units.end() ? nullptr : &it->second;
}

constexpr std::array<std::pair<const char*, double>, 11> kByteUnits = {{{"", 1},
                                                                        {"B", 1},
                                                                        {"KiB", 1024.0},
                                                                        {"MiB", 1048576.0},
                                                                        {"GiB", 1073741824.0},
                                                                        {"TiB", 1099511627776.0},
                                                                        {"kB", 1e3},
                                                                        {"KB", 1e3},
                                                                        {"MB", 1e6},
                                                                        {"GB", 1e9},
                                                                        {"TB", 1e12}}};
constexpr std::array<std::pair<const char*, double>, 18> kTimeUnits = {
    {{"us", 1e-6},
     {"ms", 1e-3},
     {"s", 1},
     {"sec", 1},
     {"second", 1},
     {"seconds", 1},
     {"min", 60},
     {"minute", 60},
     {"minutes", 60},
     {"m", 0},  // minutes or months?
     {"h", 3600},
     {"hour", 3600},
     {"hours", 3600},
     {"d", 86400},
     {"day", 86400},
     {"days", 86400},
     {"week", 604800},
     {"weeks", 604800}}};

}  // namespace

std::string range_text(const char* what, const Range& r) {
  const bool low = r.low > -1e300;
  const bool high = r.high < 1e300;
  if (low && high && !r.open_low && r.high < 1e5) {
    return format("{} from {} to {}", what, number_text(r.low), number_text(r.high));
  }
  std::string text = what;
  if (low) {
    text += format(" {} {}", r.open_low ? "above" : "of at least", number_text(r.low));
  }
  if (high) {
    text += format("{} at most {}", low ? "," : " of", number_text(r.high));
  }
  return text;
}

std::string units_text(Units units) {
  std::string text = "500 steps, 2 epochs, 10000 samples, 3 %";
  switch (units) {
    case Units::kRun: return text + " or never";
    case Units::kRunOrAuto: return text + ", auto or never";
    case Units::kInterval: return text + ", 10 s or auto";
    case Units::kAny: return text + ", 10 min, auto or never";
  }
  return text;
}

std::string number_text(double value) {
  char buffer[40];
  if (value == std::floor(value) && std::fabs(value) < 1e16) {
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, i64(value));
    return {buffer, end};
  }
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end};
}

std::string scalar_text(const std::string& text) {
  const auto simple = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '.' || c == '/';
  };
  bool plain = !text.empty() && simple(text.front()) && text.back() != ' ';
  for (const char c : text) {
    plain = plain && (simple(c) || c == '-' || c == '+' || c == ' ' || c == '%');
  }
  if (plain && text != "null" && text != "Null" && text != "NULL") {
    return text;
  }
  // What a strict reader would refuse to see as it is becomes an escape; what is not UTF-8 is lost.
  bool readable = true;
  try {
    yaml::check_bytes(text, "");
  } catch (const ConfigError&) {
    readable = false;
  }
  std::string quoted = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const Utf8 c = utf8_at(text, i);
    const std::size_t length = std::max<std::size_t>(c.length, 1);
    if (c.code == '"' || c.code == '\\') {
      quoted += '\\';
      quoted += char(c.code);
    } else if (c.length == 0) {
      quoted += "\\uFFFD";
    } else if (c.code < 0x20 || c.code == 0x7F || (c.code >= 0x80 && !readable)) {
      quoted += "\\U";
      for (int shift = 28; shift >= 0; shift -= 4) {
        quoted += "0123456789ABCDEF"[c.code >> shift & 15];
      }
    } else {
      quoted.append(text, i, length);
    }
    i += length;
  }
  return quoted + "\"";
}

i64 parse_integer(const std::string& text, const Range& range) {
  const std::string expected = range_text(
      "an integer",
      {std::max(range.low, -kMostExact), std::min(range.high, kMostExact), range.open_low});
  if (!is_decimal(text)) {
    wrong(expected, text, number_hint(text));
  }
  check_leading_zero(text);
  const double value = to_double(text);
  if (value != std::floor(value) || std::fabs(value) > kMostExact || value < range.low ||
      value > range.high) {
    wrong(expected, text);
  }
  return i64(value);
}

double parse_number(const std::string& text, const Range& range) {
  const std::string expected = range_text("a number", range);
  if (!is_decimal(text)) {
    wrong(expected, text, number_hint(text));
  }
  check_leading_zero(text);
  const double value = to_double(text);
  if (value < range.low || value > range.high || (range.open_low && value == range.low)) {
    wrong(expected, text);
  }
  return value;
}

bool parse_bool(const std::string& text) {
  if (text == "true" || text == "false") {
    return text == "true";
  }
  wrong("true or false", text);
}

i64 parse_bytes(const std::string& text) {
  static const std::string expected = "bytes, e.g. 512 MiB or 2 GB";
  const Quantity q = parse_quantity(text, expected);
  const double* scale = scale_of(kByteUnits, q.unit);
  if (scale == nullptr || q.count * *scale > kMostExact) {
    wrong(expected, text);
  }
  return i64(q.count * *scale);
}

double parse_seconds(const std::string& text) {
  static const std::string expected = "a time, e.g. 90 s, 30 min or 2 h";
  const Quantity q = parse_quantity(text, expected);
  if (q.unit == "m") {
    wrong(expected, text, "; minutes are min");
  }
  const double* scale = q.unit.empty() ? nullptr : scale_of(kTimeUnits, q.unit);
  if ((scale == nullptr && !q.unit.empty()) || q.count * (scale ? *scale : 1) > kMostSeconds) {
    wrong(expected, text);
  }
  return q.count * (scale != nullptr ? *scale : 1);
}

Period parse_period(const std::string& text, Units units) {
  using Unit = Period::Unit;
  const std::string expected = units_text(units);
  if (text == "never" || text == "0") {
    if (units == Units::kInterval) {
      wrong(expected, text);
    }
    return {};
  }
  if (text == "auto") {
    if (units == Units::kRun) {
      wrong(expected, text);
    }
    return {0, Unit::kAuto};
  }
  const Quantity q = parse_quantity(text, expected);
  if (q.unit.empty()) {
    wrong(expected, text, "; write the unit");
  }
  const double* scale = scale_of(kTimeUnits, q.unit);
  if (scale != nullptr && *scale > 0 && (units == Units::kRun || units == Units::kRunOrAuto)) {
    wrong(expected, text, "; a time would make the numbers depend on the machine");
  }
  const auto period = [&](double count, Unit unit) {
    return count == 0 ? parse_period("0", units) : Period{count, unit};
  };
  const bool steps = q.unit == "steps" || q.unit == "step";
  if (steps || q.unit == "samples" || q.unit == "sample") {
    if (q.count != std::floor(q.count) || q.count > kMostExact) {
      wrong(expected, text, "; steps and samples are whole");
    }
    return period(q.count, steps ? Unit::kSteps : Unit::kSamples);
  }
  if (q.unit == "epochs" || q.unit == "epoch") {
    if (q.count > 1e6) {
      wrong(expected, text);
    }
    return period(q.count, Unit::kEpochs);
  }
  if (q.unit == "%") {
    if (q.count > 100) {
      wrong(expected, text, "; the run is 100 %");
    }
    return period(q.count / 100, Unit::kShare);
  }
  if (scale != nullptr && *scale > 0 && q.count * *scale <= kMostSeconds) {
    return period(q.count * *scale, Unit::kSeconds);
  }
  wrong(expected, text);
}

}  // namespace penstock::io::schema

namespace penstock::io {
namespace {

// 0.07 is 7 %, although 0.07 * 100 is not 7: the shortest text that reads back to the same share.
std::string percent_text(double share) {
  for (int digits = 1; digits <= std::numeric_limits<double>::max_digits10; ++digits) {
    char buffer[40];
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, share * 100,
                                            std::chars_format::general, digits);
    double back = 0;
    std::from_chars(buffer, end, back);
    if (back / 100 == share) {
      return {buffer, end};
    }
  }
  return schema::number_text(share * 100);
}

}  // namespace

std::string to_string(const Period& p) {
  using schema::number_text;
  switch (p.unit) {
    case Period::Unit::kNever: return "never";
    case Period::Unit::kAuto: return "auto";
    case Period::Unit::kSteps: return number_text(p.count) + " steps";
    case Period::Unit::kEpochs: return number_text(p.count) + " epochs";
    case Period::Unit::kSamples: return number_text(p.count) + " samples";
    case Period::Unit::kSeconds: return number_text(p.count) + " s";
    case Period::Unit::kShare: return percent_text(p.count) + " %";
  }
  return "never";
}

}  // namespace penstock::io
