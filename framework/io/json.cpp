#include "framework/io/json.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "framework/core/check.h"
#include "framework/io/files.h"
#include "framework/io/json_utf8.h"

namespace penstock::io {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::size_t kMostLevels = 64;
constexpr std::size_t kMostValues = 1'000'000;

void write_string(std::string& to, const std::string& s) {
  static constexpr const char* kHex = "0123456789abcdef";
  to += '"';
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    if (c == '"' || c == '\\') {
      to += '\\';
      to += char(c);
    } else if (c == '\n') {
      to += "\\n";
    } else if (c < 0x20 || c == 0x7F || c == '<') {
      to += "\\u00";
      to += kHex[c >> 4];
      to += kHex[c & 15];
    } else if (c < 0x80) {
      to += char(c);
    } else if (const std::size_t n = utf8_at(s, i).length; n > 0) {
      to.append(s, i, n);
      i += n - 1;
    } else {
      to += "\xEF\xBF\xBD";
    }
  }
  to += '"';
}

// Builds a Json from parse events, with the caps; no recursion on hostile input.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(std::string name) : name_(std::move(name)) {}
  bool null() override { return put({}); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(i64(v)); }
  bool number_unsigned(number_unsigned_t v) override {
    return v > 9223372036854775807ULL ? put(double(v)) : put(i64(v));
  }
  bool number_float(number_float_t v, const string_t& /*text*/) override { return put(v); }
  bool string(string_t& v) override { return put(Json(std::move(v))); }
  bool binary(binary_t& /*v*/) override { return false; }
  bool start_object(std::size_t /*n*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*n*/) override { return open(Json::array()); }
  bool key(string_t& v) override {
    if (!stack_.back().keys.insert(v).second) {
      throw DataError(format("{}: the key {} is there twice", name_, in_quotes(v)));
    }
    stack_.back().key = std::move(v);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*e*/) override {
    throw DataError(format("{}: not JSON at byte {}", name_, position));
  }
  Json take() { return std::move(root_); }

 private:
  bool open(Json value) {
    if (stack_.size() >= kMostLevels) {
      throw DataError(format("{}: nested deeper than {} levels", name_, kMostLevels));
    }
    stack_.push_back({.value = std::move(value), .key = {}, .keys = {}});
    return true;
  }
  bool close() {
    Json done = std::move(stack_.back().value);
    stack_.pop_back();
    return put(std::move(done));
  }
  bool put(Json value) {
    if (++values_ > kMostValues) {
      throw DataError(format("{}: more than {} values", name_, kMostValues));
    }
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().value.members() != nullptr) {
      stack_.back().value.set(std::move(stack_.back().key), std::move(value));
    } else {
      stack_.back().value.push(std::move(value));
    }
    return true;
  }

  struct Open {
    Json value;
    std::string key;                       // of the member that comes
    std::unordered_set<std::string> keys;  // so far
  };

  std::string name_;
  Json root_;
  std::vector<Open> stack_;
  std::size_t values_ = 0;
};

}  // namespace

Json& Json::set(std::string key, Json value) {
  std::get<Object>(value_).emplace_back(std::move(key), std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

const Json* Json::find(std::string_view key) const {
  if (const Object* o = members()) {
    for (const auto& [k, v] : *o) {
      if (k == key) {
        return &v;
      }
    }
  }
  return nullptr;
}

const Json* Json::at(std::string_view path) const {
  const Json* here = this;
  while (here != nullptr && !path.empty()) {
    const std::size_t dot = path.find('.');
    here = here->find(path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return here;
}

std::optional<double> Json::number() const {
  if (const i64* i = std::get_if<i64>(&value_)) {
    return double(*i);
  }
  if (const double* d = std::get_if<double>(&value_)) {
    return *d;
  }
  return std::nullopt;
}

std::optional<std::string> Json::text() const {
  const auto* s = std::get_if<std::string>(&value_);
  return s == nullptr ? std::nullopt : std::optional(*s);
}

std::optional<bool> Json::boolean() const {
  const bool* b = std::get_if<bool>(&value_);
  return b == nullptr ? std::nullopt : std::optional(*b);
}

void Json::write(std::string& to, int level, bool indent) const {
  const auto line = [&](int at) {
    if (indent) {
      to += '\n';
      to.append(std::size_t(2 * at), ' ');
    }
  };
  if (const bool* b = std::get_if<bool>(&value_)) {
    to += *b ? "true" : "false";
  } else if (const i64* i = std::get_if<i64>(&value_)) {
    to += std::to_string(*i);
  } else if (const double* d = std::get_if<double>(&value_)) {
    if (!std::isfinite(*d)) {
      to += "null";
    } else if (*d == 0 && std::signbit(*d)) {
      to += "-0.0";  // "-0" would be read as the integer 0
    } else {
      char buffer[40];
      const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, *d);
      to.append(buffer, end);
    }
  } else if (const auto* s = std::get_if<std::string>(&value_)) {
    write_string(to, *s);
  } else if (const Array* a = items()) {
    to += '[';
    for (std::size_t k = 0; k < a->size(); ++k) {
      to += k > 0 ? "," : "";
      line(level + 1);
      (*a)[k].write(to, level + 1, indent);
    }
    if (!a->empty()) {
      line(level);
    }
    to += ']';
  } else if (const Object* o = members()) {
    to += '{';
    for (std::size_t k = 0; k < o->size(); ++k) {
      to += k > 0 ? "," : "";
      line(level + 1);
      write_string(to, (*o)[k].first);
      to += indent ? ": " : ":";
      (*o)[k].second.write(to, level + 1, indent);
    }
    if (!o->empty()) {
      line(level);
    }
    to += '}';
  } else {
    to += "null";
  }
}

std::string Json::dump(bool indent) const {
  std::string out;
  write(out, 0, indent);
  return out;
}

Json Json::parse(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) {
    throw DataError(format("{}: {} bytes; at most {} are read", name, text.size(), kMostBytes));
  }
  Builder builder(name);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace penstock::io
