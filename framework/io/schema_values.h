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

i64 parse_integer(const std::string& text, const Range& range);
double parse_number(const std::string& text, const Range& range);
bool parse_bool(const std::string& text);
// "512 MiB", "1.5 GB", "4096".
i64 parse_bytes(const std::string& text);
// "30 min", "90 s", "2 h", "45" (seconds).
double parse_seconds(const std::string& text);
Period parse_period(const std::string& text);

// The shortest text that reads back to the same number.
std::string number_text(double value);
// In quotes where YAML would read it as something else.
std::string scalar_text(const std::string& text);

}  // namespace penstock::io::schema
