#include "framework/io/config.h"

#include <algorithm>
#include <functional>
#include <sstream>

#include "framework/io/config_yaml.h"
#include "framework/io/files.h"
#include "framework/io/schema.h"
#include "framework/io/schema_values.h"

namespace penstock::io {
namespace {

using schema::Key;
using schema::Value;
using yaml::fail_at;
using yaml::Node;
using yaml::Place;

constexpr std::size_t kMostItems = 4096;  // of a list

Value value_from(const Node& node, const Key& key, const std::string& path) {
  const auto scalar = [&](const Node& n) {
    switch (n.kind) {
      case Node::Kind::kScalar: return n.text;
      case Node::Kind::kMap:
        fail_at(n.place, format("{}: expected {}, found a section", path, key.type));
      case Node::Kind::kList:
        fail_at(n.place, format("{}: expected {}, found a list in a list", path, key.type));
      case Node::Kind::kNothing: break;
    }
    fail_at(n.place, format("{}: expected {}, found nothing; write a value or remove the key", path,
                            key.type));
  };
  Value v;
  v.list = node.kind == Node::Kind::kList;
  if (!v.list) {
    v.items.push_back(scalar(node));
    v.quoted = node.quoted;
    return v;
  }
  if (node.items.size() > kMostItems) {
    fail_at(node.place,
            format("{}: a list of {} items; at most {}", path, node.items.size(), kMostItems));
  }
  for (const Node& n : node.items) {
    v.items.push_back(scalar(n));
    v.quoted = v.quoted || n.quoted;
  }
  return v;
}

// The default of a key as a value; none when it has no default.
std::optional<Value> fallback_of(const Key& key) {
  if (key.fallback.empty()) {
    return key.required ? std::nullopt : std::optional(Value{.items = {""}});
  }
  Value v;
  if (key.fallback.front() != '[') {
    v.items = {key.fallback};
    return v;
  }
  v.list = true;
  std::istringstream items(key.fallback.substr(1, key.fallback.size() - 2));
  std::string item;
  while (std::getline(items >> std::ws, item, ',')) {
    v.items.push_back(item);
  }
  return v;
}

std::string unknown_key(const std::string& path) {
  const std::string near = schema::nearest(path);
  return format("{}: unknown key{}; `penstock config` lists all keys", in_quotes(path),
                near.empty() ? "" : format("; nearest: {}", near));
}

// For a word at the top of a file that is no section.
std::string unknown_section(const std::string& word, const Node& inside) {
  if (inside.kind == Node::Kind::kMap) {
    const std::string near = schema::nearest_section(word);
    std::string all;
    for (const std::string& s : schema::sections()) {
      all += (all.empty() ? "" : ", ") + s;
    }
    return format("{}: unknown section; {}: {}", in_quotes(word),
                  near.empty() ? "there are" : "nearest", near.empty() ? all : near);
  }
  if (const Key* key = schema::find(word)) {
    const std::size_t dot = key->path.find('.');
    return format("{}: write {} below a line \"{}:\", indented by two spaces", in_quotes(word),
                  key->path.substr(dot + 1), key->path.substr(0, dot));
  }
  return unknown_key(word);  // a key without its section is the commonest slip
}

void assign(Config& config, const Key& key, const Value& value, const Place& place,
            const std::string& written) {
  try {
    key.set(config, value);
  } catch (const ConfigError& e) {
    fail_at(place, format("{}: {}", written, e.what()));
  }
  config.origins[key.path] = to_string(place);
}

void read_yaml(Config& config, std::string_view text, const std::string& name) {
  const Node root = yaml::read(text, name);
  if (root.kind == Node::Kind::kNothing) {
    fail_at({name, 1, 1}, "the file is empty; it needs at least model.name and data.name");
  }
  if (root.kind != Node::Kind::kMap) {
    fail_at(root.place, "expected sections such as \"model:\", found something else");
  }
  std::map<std::string, int> lines;  // of the keys so far, by their own names
  for (std::size_t i = 0; i < root.keys.size(); ++i) {
    const Node& section = root.keys[i];
    const Node& inside = root.items[i];
    const auto& known = schema::sections();
    if (std::find(known.begin(), known.end(), section.text) == known.end()) {
      fail_at(section.place, unknown_section(section.text, inside));
    }
    if (inside.kind == Node::Kind::kNothing) {
      continue;
    }
    if (inside.kind != Node::Kind::kMap) {
      fail_at(inside.place, format("{}: expected a section with keys, found a {}", section.text,
                                   inside.kind == Node::Kind::kList ? "list" : "value"));
    }
    for (std::size_t k = 0; k < inside.keys.size(); ++k) {
      const Node& word = inside.keys[k];
      const Node& value = inside.items[k];
      const std::string path = section.text + "." + word.text;
      const Key* key = schema::find(path);
      if (key == nullptr) {
        fail_at(word.place, unknown_key(path));
      }
      const auto [first, fresh] = lines.emplace(key->path, word.place.line);
      if (!fresh) {
        fail_at(word.place,
                format("{}: this key is there twice, first in line {} (another name of {}); keep "
                       "one",
                       path, first->second, key->path));
      }
      assign(config, *key, value_from(value, *key, path), value.place, path);
    }
  }
}

// --set key.path=value: text as it stands; [a, b], "text" and 'text' as in a file.
void read_override(Config& config, const std::string& text) {
  const std::size_t equals = text.find('=');
  const Place place{.file = "--set"};
  if (equals == std::string::npos || equals == 0) {
    fail_at(place, format("{}: expected key.path=value", in_quotes(text)));
  }
  const std::string path = text.substr(0, equals);
  const std::string written = text.substr(equals + 1);
  const Key* key = schema::find(path);
  if (key == nullptr) {
    fail_at(place, unknown_key(path));
  }
  if (written.empty()) {  // takes the default back
    const std::optional<Value> fallback = fallback_of(*key);
    if (!fallback) {
      fail_at(place, format("{}: expected {}, found nothing", path, key->type));
    }
    key->set(config, *fallback);
    config.origins.erase(key->path);
    return;
  }
  Value value;
  if (std::string_view("[{\"'").find(written.front()) != std::string_view::npos) {
    value = value_from(yaml::read(written, "--set " + path), *key, path);
  } else {
    yaml::check_bytes(written, "--set " + path);
    if (written.find('\n') != std::string::npos) {
      fail_at(place, format("{}: expected {}, found several lines", path, key->type));
    }
    value.items = {written};
  }
  assign(config, *key, value, place, path);
}

[[noreturn]] void fail_key(const Config& c, const char* key, const std::string& message) {
  const std::string origin = origin_of(c, key);
  throw ConfigError(format("{}: {}: {}", origin == "default" ? c.source : origin, key, message));
}

// What no key alone can show.
void check_together(const Config& c) {
  for (const Key& k : schema::table()) {
    if (k.required && c.origins.count(k.path) == 0) {
      throw ConfigError(format("{}: {} is missing; expected {}", c.source, k.path, k.type));
    }
  }
  if (c.model.attention_dropout != 0) {
    fail_key(c, "model.attention_dropout",
             format("{} is not available, because attention runs fused; expected 0 (model.dropout "
                    "acts on the "
                    "projections)",
                    schema::number_text(c.model.attention_dropout)));
  }
  const auto beta = [](double b) { return b >= 0 && b < 1; };
  if (c.optimizer.betas.size() != 2 ||
      !std::all_of(c.optimizer.betas.begin(), c.optimizer.betas.end(), beta)) {
    fail_key(c, "optimizer.betas", "expected two numbers from 0 to below 1");
  }
  if (c.data.mean.size() != c.data.deviation.size() || c.data.mean.size() > 4) {
    fail_key(
        c, c.data.mean.empty() ? "data.deviation" : "data.mean",
        format("data.mean has {} values and data.deviation {}; expected one per channel in both",
               c.data.mean.size(), c.data.deviation.size()));
  }
  const std::vector<double>& milestones = c.schedule.milestones;
  if (std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal<>()) !=
      milestones.end()) {
    fail_key(c, "schedule.milestones", "expected shares of the run that rise, such as [0.5, 0.75]");
  }
}

}  // namespace

Config default_config() {
  static const Config defaults = [] {
    Config c;
    c.source = "defaults";
    for (const Key& k : schema::table()) {
      if (const std::optional<Value> fallback = fallback_of(k)) {
        k.set(c, *fallback);
      }
    }
    return c;
  }();
  return defaults;
}

Config parse_config(std::string_view text, const std::string& name,
                    std::span<const std::string> overrides) {
  Config c = default_config();
  c.source = name;
  read_yaml(c, text, name);
  for (const std::string& o : overrides) {
    read_override(c, o);
  }
  check_together(c);
  return c;
}

Config load_config(const std::string& path, std::span<const std::string> overrides) {
  std::string text;
  try {
    text = read_text(path, i64(yaml::kMostBytes));
  } catch (const Error& e) {
    throw ConfigError(e.what());
  }
  return parse_config(text, path, overrides);
}

std::string origin_of(const Config& config, const std::string& key) {
  const auto it = config.origins.find(key);
  return it == config.origins.end() ? "default" : it->second;
}

std::string value_of(const Config& config, const std::string& key) {
  const Key* k = schema::find(key);
  if (k == nullptr) {
    throw ConfigError(unknown_key(key));
  }
  return k->text(config);
}

std::vector<std::string> config_keys() {
  std::vector<std::string> keys;
  for (const Key& k : schema::table()) {
    keys.push_back(k.path);
  }
  return keys;
}

std::string to_yaml(const Config& config, bool origins) {
  std::string out;
  std::string section;
  for (const Key& k : schema::table()) {
    const std::string value = k.text(config);
    if (value.empty()) {
      continue;
    }
    const std::string s = k.path.substr(0, k.path.find('.'));
    if (s != section) {
      out += (section.empty() ? "" : "\n") + s + ":\n";
      section = s;
    }
    out += "  " + k.path.substr(s.size() + 1) + ": " + value;
    if (origins) {
      out += "  # " + origin_of(config, k.path);
    }
    out += "\n";
  }
  return out;
}

std::string config_reference() {
  std::string out =
      "# Every key of a configuration with its default. A file needs model.name and data.name "
      "only.\n";
  std::string section;
  for (const Key& k : schema::table()) {
    const std::string s = k.path.substr(0, k.path.find('.'));
    if (s != section) {
      out += "\n" + s + ":\n";
      section = s;
    }
    const char* resume = k.resume == schema::Resume::kFree         ? ""
                         : k.resume == schema::Resume::kExtendable ? "; may grow on resume"
                                                                   : "; fixed on resume";
    out += format("  # {} ({}{})\n", k.help, k.type, resume);
    const std::string name = k.path.substr(s.size() + 1);
    if (k.required) {
      out += format("  {}:  # required\n", name);
    } else {
      out += format("  {}: {}\n", name, k.fallback.empty() ? "\"\"" : k.fallback);
    }
  }
  return out;
}

std::vector<std::string> completions(std::string_view prefix) {
  std::vector<std::string> all;
  const std::size_t equals = prefix.find('=');
  for (const Key& k : schema::table()) {
    if (equals == std::string_view::npos) {
      if (k.path.starts_with(prefix)) {
        all.push_back(k.path + "=");
      }
    } else if (k.path == prefix.substr(0, equals)) {
      for (const std::string& c : k.choices) {
        if (c.starts_with(prefix.substr(equals + 1))) {
          all.push_back(k.path + "=" + c);
        }
      }
    }
  }
  return all;
}

std::vector<KeyChange> differences(const Config& a, const Config& b) {
  std::vector<KeyChange> changes;
  for (const Key& k : schema::table()) {
    const std::string before = k.text(a);
    const std::string after = k.text(b);
    if (before != after) {
      changes.push_back({k.path, before, after});
    }
  }
  return changes;
}

std::vector<KeyChange> resume_conflicts(const Config& saved, const Config& now) {
  std::vector<KeyChange> conflicts;
  for (const KeyChange& change : differences(saved, now)) {
    const schema::Resume resume = schema::find(change.key)->resume;
    const auto number = [](const std::string& text) { return schema::parse_number(text, {}); };
    if (resume == schema::Resume::kFrozen ||
        (resume == schema::Resume::kExtendable && number(change.after) < number(change.before))) {
      conflicts.push_back(change);
    }
  }
  return conflicts;
}

void check_resume(const Config& saved, const Config& now) {
  std::string list;
  for (const KeyChange& change : resume_conflicts(saved, now)) {
    const auto text = [](const std::string& value) { return value.empty() ? "nothing" : value; };
    list += format("\n  {}: {} in the checkpoint, {} now ({}){}", change.key, text(change.before),
                   text(change.after), origin_of(now, change.key),
                   schema::find(change.key)->resume == schema::Resume::kExtendable
                       ? "; it may only grow"
                       : "");
  }
  if (!list.empty()) {
    throw ConfigError(
        format("{}: these keys are fixed once a run has begun:{}\nSet them back, or start a "
               "new run in another folder",
               now.source, list));
  }
}

}  // namespace penstock::io
