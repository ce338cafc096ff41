#include "framework/io/manifest.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace penstock::io {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFiles = 64;
constexpr int kMaxDepth = 16;

[[noreturn]] void refuse(const std::string& path, std::string_view what) {
  throw StorageError(format("manifest {}: {}", path, what));
}

// Text that needs no escaping in JSON.
bool is_plain_text(std::string_view text) {
  return text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
           return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
         });
}

std::string number_text(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
  }
  // Always with a fraction or an exponent, so that it reads back as a float.
  std::string text = format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string checksum_line(std::string_view body) {
  return format("  \"checksum\": \"{}\"\n}\n",
                checksum_text(checksum_of(std::as_bytes(std::span(body)))));
}

// Does the text end as every format's does: with the checksum of what stands before that line?
bool is_sealed(std::string_view text) {
  const std::size_t line = checksum_line("").size();
  return text.size() > line &&
         text.substr(text.size() - line) == checksum_line(text.substr(0, text.size() - line));
}

class Fields {
 public:
  Fields(const Json& object, const std::string& path) : object_(object), path_(path) {}

  const Json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) {
      refuse(path_, format("field \"{}\" is missing", name));
    }
    return *found;
  }
  i64 integer(const char* name) const {
    const Json& value = at(name);
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > std::uint64_t(std::numeric_limits<i64>::max())) {
      refuse(path_, format("field \"{}\" is not a whole number from 0 to 2^63 - 1", name));
    }
    return value.get<i64>();
  }
  std::string text(const char* name) const {
    const Json& value = at(name);
    if (!value.is_string()) {
      refuse(path_, format("field \"{}\" is not a string", name));
    }
    return value.get<std::string>();
  }
  std::optional<double> metric(const char* name) const {
    const Json& value = at(name);
    if (value.is_null()) {
      return std::nullopt;
    }
    if (value.is_string()) {
      const std::string word = value.get<std::string>();
      if (word == "nan") {
        return std::numeric_limits<double>::quiet_NaN();
      }
      if (word == "inf" || word == "-inf") {
        return word == "inf" ? HUGE_VAL : -HUGE_VAL;
      }
    }
    if (!value.is_number_float()) {
      refuse(path_, format("field \"{}\" is not a number", name));
    }
    return value.get<double>();
  }

 private:
  const Json& object_;
  const std::string& path_;
};

std::uint64_t parse_checksum(const std::string& text, const std::string& path) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    refuse(path, format("checksum {} is not 16 hexadecimal digits", in_quotes(text, 32)));
  }
  return value;
}

Json parse_json(std::string_view text, const std::string& path) {
  const auto guard = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      refuse(path, "nested too deeply");
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), guard, false);
  if (!json.is_object()) {
    refuse(path, "not a JSON object: damaged, or not a manifest");
  }
  return json;
}

}  // namespace

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

std::string manifest_text(const Manifest& m) {
  check(is_plain_text(m.run) && is_plain_text(m.writer) && is_plain_text(m.metric_name) &&
            is_plain_text(m.previous),
        "manifest: run {}, writer {}, metric {} and previous {} must be short printable text",
        in_quotes(m.run), in_quotes(m.writer), in_quotes(m.metric_name), in_quotes(m.previous));
  check(m.files.size() <= kMaxFiles, "manifest: {} files, at most {} are supported", m.files.size(),
        kMaxFiles);
  std::string text = format("{{\n  \"format\": {},\n", Manifest::kFormat);
  text += format("  \"run\": \"{}\",\n  \"writer\": \"{}\",\n", m.run, m.writer);
  text += format("  \"sequence\": {},\n  \"step\": {},\n  \"position\": {},\n", m.sequence, m.step,
                 m.position);
  text += format("  \"metric_name\": \"{}\",\n  \"metric\": {},\n", m.metric_name,
                 m.metric ? number_text(*m.metric) : "null");
  text += format("  \"previous\": \"{}\",\n  \"files\": [", m.previous);
  for (std::size_t i = 0; i < m.files.size(); ++i) {
    const ManifestFile& file = m.files[i];
    check(is_plain_name(file.name) && file.name != kManifestName,
          "manifest: {} cannot name a file of a checkpoint", in_quotes(file.name));
    text += format("{}\n    {{\"name\": \"{}\", \"bytes\": {}, \"xxh3\": \"{}\"}",
                   i == 0 ? "" : ",", file.name, file.bytes, checksum_text(file.checksum));
  }
  text += "\n  ],\n";
  return text + checksum_line(text);
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  if (i64(text.size()) > kManifestBytes) {
    refuse(path, format("{} bytes, at most {} are expected", text.size(), kManifestBytes));
  }
  const Json json = parse_json(text, path);
  const Fields fields(json, path);
  const i64 format_version = fields.integer("format");
  if (!is_sealed(text)) {
    refuse(path, "its checksum is wrong: damaged or edited");
  }
  if (format_version > Manifest::kFormat) {
    throw NewerFormat(
        format("manifest {}: written in checkpoint format {}, this version of "
               "Penstock reads up to {}: use a newer Penstock",
               path, format_version, Manifest::kFormat));
  }
  Manifest m;
  m.run = fields.text("run");
  m.writer = fields.text("writer");
  m.sequence = fields.integer("sequence");
  m.step = fields.integer("step");
  m.position = fields.integer("position");
  m.metric_name = fields.text("metric_name");
  m.metric = fields.metric("metric");
  m.previous = fields.text("previous");
  const Json& files = fields.at("files");
  if (!files.is_array() || files.size() > kMaxFiles) {
    refuse(path, format("\"files\" is not a list of at most {} files", kMaxFiles));
  }
  std::set<std::string> names;
  for (const Json& entry : files) {
    if (!entry.is_object()) {
      refuse(path, "an entry of \"files\" is not an object");
    }
    const Fields file(entry, path);
    m.files.push_back({.name = file.text("name"),
                       .bytes = file.integer("bytes"),
                       .checksum = parse_checksum(file.text("xxh3"), path)});
    const std::string& name = m.files.back().name;
    if (!is_plain_name(name) || name == kManifestName || !names.insert(name).second) {
      refuse(path, format("file name {} is not allowed, or appears twice", in_quotes(name)));
    }
  }
  if (!is_plain_text(m.run) || !is_plain_text(m.writer) || !is_plain_text(m.metric_name) ||
      !is_plain_text(m.previous)) {
    refuse(path, "a text field holds what no manifest of ours would hold");
  }
  // There is one text for one manifest: a repeated or unknown field or other white space means that
  // somebody else wrote it.
  if (manifest_text(m) != text) {
    refuse(path, "not in the form in which Penstock writes it");
  }
  return m;
}

}  // namespace penstock::io
