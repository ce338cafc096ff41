// The decision log: one JSON object a line, with every input of the machine that wrote it, so that
// the log alone reproduces the decisions (replay.h).
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "framework/core/check.h"

namespace penstock::tuner {

// One line: an event name and keyed values in the order in which they were added.
class Record {
 public:
  using Value = std::variant<bool, double, std::string, std::vector<double>>;

  explicit Record(std::string event = {}) : event_(std::move(event)) {}
  const std::string& event() const { return event_; }

  // Adds a key: a bool, a number (kept as a double), a text or a list of numbers.
  template <class T>
  Record& set(std::string key, const T& value) {
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      return add(std::move(key), Value(double(value)));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return add(std::move(key), Value(std::string(std::string_view(value))));
    } else {
      return add(std::move(key), Value(value));
    }
  }

  const std::vector<std::pair<std::string, Value>>& values() const { return values_; }
  bool has(std::string_view key) const;
  // The value of a key; a missing key or another type throws DataError naming the key and, when
  // the record was parsed, its line.
  double number(std::string_view key) const;
  i64 integer(std::string_view key) const;
  bool flag(std::string_view key) const;
  const std::string& text(std::string_view key) const;
  const std::vector<double>& list(std::string_view key) const;

  // {"event":"...","key":value,...} without a line break. Numbers are the shortest text that reads
  // back to the same double; those that are not finite become null and read back as NaN.
  std::string to_line() const;
  // Reads what to_line() writes. Throws DataError naming `source` and `line_number`.
  static Record parse(std::string_view line, std::string_view source, i64 line_number);

  // File and line, for messages: "decisions.jsonl:12"; empty when the record was not parsed.
  const std::string& origin() const { return origin_; }

 private:
  Record& add(std::string key, Value value);
  const Value& at(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, const char* expected) const;

  std::string event_;
  std::vector<std::pair<std::string, Value>> values_;
  std::string origin_;
};

// All records of a log; empty lines are skipped, and a last line without a line break that cannot
// be read (a run that was killed while writing) is left out. The journal's own lines, which begin
// with "session" or "gap", become the events "journal.session" and "journal.gap". Throws DataError
// naming the line.
std::vector<Record> parse_log(std::string_view text, std::string_view source);

// `value` with six significant digits: machines round their inputs so that the log stays short.
double rounded(double value);

}  // namespace penstock::tuner
