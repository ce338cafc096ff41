#include "framework/tuner/decisions.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace penstock::tuner {
namespace {

constexpr std::size_t kLongestLine = std::size_t(1) << 20;
constexpr std::size_t kMostKeys = 200;

void append_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (byte < 0x20) {
          constexpr std::string_view kHex = "0123456789abcdef";
          out += "\\u00";
          out += kHex[byte >> 4];
          out += kHex[byte & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> buffer{};
  out.append(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr);
}

void append_value(std::string& out, const Record::Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) {
    out += *flag ? "true" : "false";
  } else if (const auto* number = std::get_if<double>(&value)) {
    append_number(out, *number);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    append_text(out, *text);
  } else {
    out += '[';
    bool first = true;
    for (const double item : std::get<std::vector<double>>(value)) {
      if (!first) {
        out += ',';
      }
      first = false;
      append_number(out, item);
    }
    out += ']';
  }
}

// A reader for one flat JSON object: texts, numbers, true, false, null and lists of numbers.
class Reader {
 public:
  Reader(std::string_view text, std::string origin) : text_(text), origin_(std::move(origin)) {}

  [[noreturn]] void fail_at(const std::string& what) const {
    throw DataError(format("{}: decision log: {} at column {}", origin_, what, at_ + 1));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  bool take(char c) {
    skip_space();
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }
  void need(char c) {
    if (!take(c)) {
      fail_at(at_ < text_.size() ? format("expected '{}', found '{}'", c, text_[at_])
                                 : format("expected '{}', found the end of the line", c));
    }
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }

  std::string read_text() {
    need('"');
    std::string out;
    while (true) {
      if (at_ == text_.size()) {
        fail_at("a text is not closed");
      }
      const char c = text_[at_++];
      if (c == '"') {
        return out;
      }
      if (static_cast<unsigned char>(c) < 0x20) {
        fail_at("a control character inside a text");
      }
      if (c == '\\') {
        read_escape(out);
      } else {
        out += c;
      }
    }
  }

  Record::Value read_value() {
    skip_space();
    if (at_ == text_.size()) {
      fail_at("a value is missing");
    }
    const char c = text_[at_];
    if (c == '"') {
      return read_text();
    }
    if (c == '[') {
      ++at_;
      std::vector<double> list;
      if (take(']')) {
        return list;
      }
      do {
        skip_space();
        list.push_back(read_number());
      } while (take(','));
      need(']');
      return list;
    }
    if (c == '{') {
      fail_at("an object inside the object; a decision is flat");
    }
    if (take_word("true")) {
      return true;
    }
    if (take_word("false")) {
      return false;
    }
    return read_number();
  }

 private:
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) == word) {
      at_ += word.size();
      return true;
    }
    return false;
  }
  double read_number() {
    if (take_word("null")) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    double value = 0;
    const char* first = text_.data() + at_;
    const auto result = std::from_chars(first, text_.data() + text_.size(), value);
    if (result.ec != std::errc() || !std::isfinite(value)) {
      fail_at("a value that is no number, text, true, false or list of numbers");
    }
    at_ += std::size_t(result.ptr - first);
    return value;
  }
  void read_escape(std::string& out) {
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    switch (c) {
      case '"': out += '"'; return;
      case '\\': out += '\\'; return;
      case '/': out += '/'; return;
      case 'n': out += '\n'; return;
      case 't': out += '\t'; return;
      case 'r': out += '\r'; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      case 'u': break;
      default: fail_at("an escape that JSON does not have");
    }
    unsigned code = 0;
    const char* first = text_.data() + at_;
    const char* last = text_.data() + std::min(text_.size(), at_ + 4);
    const auto result = std::from_chars(first, last, code, 16);
    if (result.ec != std::errc() || result.ptr != first + 4) {
      fail_at("\\u without four hexadecimal digits");
    }
    at_ += 4;
    if (code >= 0xd800 && code < 0xe000) {
      fail_at("a surrogate; the writer does not use them");
    }
    if (code < 0x80) {
      out += char(code);
    } else if (code < 0x800) {
      out += char(0xc0 | (code >> 6));
      out += char(0x80 | (code & 0x3f));
    } else {
      out += char(0xe0 | (code >> 12));
      out += char(0x80 | ((code >> 6) & 0x3f));
      out += char(0x80 | (code & 0x3f));
    }
  }

  std::string_view text_;
  std::string origin_;
  std::size_t at_ = 0;
};

}  // namespace

Record& Record::add(std::string key, Value value) {
  values_.emplace_back(std::move(key), std::move(value));
  return *this;
}

bool Record::has(std::string_view key) const {
  for (const auto& [name, value] : values_) {
    if (name == key) {
      return true;
    }
  }
  return false;
}

const Record::Value& Record::at(std::string_view key) const {
  for (const auto& [name, value] : values_) {
    if (name == key) {
      return value;
    }
  }
  throw DataError(format("{}: decision log: event \"{}\" has no key \"{}\"",
                         origin_.empty() ? "record" : origin_, event_, key));
}

void Record::wrong_type(std::string_view key, const char* expected) const {
  throw DataError(format("{}: decision log: key \"{}\" of event \"{}\" should be {}",
                         origin_.empty() ? "record" : origin_, key, event_, expected));
}

double Record::number(std::string_view key) const {
  if (const auto* value = std::get_if<double>(&at(key))) {
    return *value;
  }
  wrong_type(key, "a number");
}

i64 Record::integer(std::string_view key) const {
  const double value = number(key);
  if (!(std::abs(value) <= 9007199254740992.0) || value != std::floor(value)) {
    wrong_type(key, "a whole number");
  }
  return i64(value);
}

bool Record::flag(std::string_view key) const {
  if (const auto* value = std::get_if<bool>(&at(key))) {
    return *value;
  }
  wrong_type(key, "true or false");
}

const std::string& Record::text(std::string_view key) const {
  if (const auto* value = std::get_if<std::string>(&at(key))) {
    return *value;
  }
  wrong_type(key, "a text");
}

const std::vector<double>& Record::list(std::string_view key) const {
  if (const auto* value = std::get_if<std::vector<double>>(&at(key))) {
    return *value;
  }
  wrong_type(key, "a list of numbers");
}

std::string Record::to_line() const {
  std::string out = "{\"event\":";
  append_text(out, event_);
  for (const auto& [key, value] : values_) {
    out += ',';
    append_text(out, key);
    out += ':';
    append_value(out, value);
  }
  out += '}';
  return out;
}

Record Record::parse(std::string_view line, std::string_view source, i64 line_number) {
  const std::string origin = format("{}:{}", source, line_number);
  if (line.size() > kLongestLine) {
    throw DataError(format("{}: decision log: a line of {} bytes, at most {} are read", origin,
                           line.size(), kLongestLine));
  }
  Reader reader(line, origin);
  Record record;
  record.origin_ = origin;
  reader.need('{');
  if (!reader.take('}')) {
    do {
      std::string key = reader.read_text();
      reader.need(':');
      Value value = reader.read_value();
      if (key == "event") {
        const auto* name = std::get_if<std::string>(&value);
        if (name == nullptr || !record.event_.empty()) {
          reader.fail_at("\"event\" should be one text");
        }
        record.event_ = *name;
      } else if (record.has(key)) {
        reader.fail_at(format("key \"{}\" a second time", key));
      } else if (record.values_.size() == kMostKeys) {
        reader.fail_at(format("more than {} keys", kMostKeys));
      } else {
        record.add(std::move(key), std::move(value));
      }
    } while (reader.take(','));
    reader.need('}');
  }
  if (!reader.at_end()) {
    reader.fail_at("text after the object");
  }
  if (record.event_.empty()) {
    reader.fail_at("no \"event\"");
  }
  return record;
}

std::vector<Record> parse_log(std::string_view text, std::string_view source) {
  std::vector<Record> records;
  i64 line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const std::size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(whole ? end + 1 : text.size());
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    try {
      // Lines of the journal itself: what came before a session or a gap does not continue after
      // it.
      const bool session = line.substr(0, 11) == "{\"session\":";
      const bool gap = line.substr(0, 7) == "{\"gap\":";
      const std::string_view read = session ? "{\"event\":\"journal.session\"}"
                                    : gap   ? "{\"event\":\"journal.gap\"}"
                                            : line;
      records.push_back(Record::parse(read, source, line_number));
    } catch (const DataError&) {
      if (whole) {
        throw;
      }
    }
  }
  return records;
}

double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) {
    return value;
  }
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific, 5)
                       .ptr;
  double out = value;
  std::from_chars(buffer.data(), end, out);
  return out;
}

}  // namespace penstock::tuner
