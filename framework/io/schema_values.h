// Reading and writing single values of the configuration; messages say what was expected.
#pragma once

#include "framework/io/schema.h"

namespace penstock::io::schema {

// Limits a number; both ends are allowed.
struct Range {
  double low = -1e300;
  double high = 1e300;
  bool open_low = false;  // the low end itself is not allowed
};
// "integer from 1 to 64", "number above 0, at most 1000000".
std::string range_text(const char* what, const Range& range);

// Which units of a period a key understands.
enum class Units : std::uint8_t {
  kRun,        // steps, epochs, samples, % of the run, never
  kRunOrAuto,  // those and auto
  kInterval,   // those, auto and times, but not never
  kAny,
};
// "500 steps, 2 epochs, ... or never".
std::string units_text(Units units);

// Each throws ConfigError: "expected ..., found ...".
i64 parse_integer(const std::string& text, const Range& range);
double parse_number(const std::string& text, const Range& range);
bool parse_bool(const std::string& text);
// "512 MiB", "1.5 GB", "4096".
i64 parse_bytes(const std::string& text);
// "30 min", "90 s", "2 h", "45" (seconds); at most 100 years.
double parse_seconds(const std::string& text);
Period parse_period(const std::string& text, Units units);

// The shortest text that reads back to the same number.
std::string number_text(double value);
// In quotes where YAML would read it as something else.
std::string scalar_text(const std::string& text);

}  // namespace penstock::io::schema
