// JSON values for results, logs and run folders: written with every string escaped, read under
// caps.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "framework/core/target.h"

namespace penstock::io {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;                                // null
  Json(bool v) : value_(v) {}                      // NOLINT(google-explicit-constructor)
  Json(double v) : value_(v) {}                    // NOLINT: not finite becomes null
  Json(i64 v) : value_(v) {}                       // NOLINT
  Json(int v) : value_(i64(v)) {}                  // NOLINT
  Json(std::string v) : value_(std::move(v)) {}    // NOLINT
  Json(const char* v) : value_(std::string(v)) {}  // NOLINT
  Json(const std::optional<double>& v) {           // NOLINT: none becomes null
    if (v) {
      value_ = *v;
    }
  }
  static Json object() { return Json(Object{}); }
  static Json array() { return Json(Array{}); }

  // Adds a member, in order; on an object.
  Json& set(std::string key, Json value);
  // Appends; on an array.
  Json& push(Json value);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  // The member, or null.
  const Json* find(std::string_view key) const;
  // A path of members: at("verdict.limit").
  const Json* at(std::string_view path) const;
  std::optional<double> number() const;
  std::optional<std::string> text() const;
  std::optional<bool> boolean() const;
  const Array* items() const { return std::get_if<Array>(&value_); }
  const Object* members() const { return std::get_if<Object>(&value_); }

  // One line; with `indent`, many. Invalid UTF-8 is replaced; "<" is escaped, so the text may stand
  // in a page.
  std::string dump(bool indent = false) const;
  // At most 64 MiB, 10^6 values, 64 levels, no duplicate keys. Throws DataError naming `name`.
  static Json parse(std::string_view text, const std::string& name);

 private:
  explicit Json(Array v) : value_(std::move(v)) {}
  explicit Json(Object v) : value_(std::move(v)) {}
  void write(std::string& to, int level, bool indent) const;

  std::variant<std::monostate, bool, i64, double, std::string, Array, Object> value_;
};

}  // namespace penstock::io
