#include "framework/io/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "framework/io/files.h"
#include "framework/io/schema.h"
#include "framework/io/schema_values.h"

namespace penstock::io {
namespace {

using schema::Key;
using schema::Value;

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

struct Place {
  std::string file;
  int line = 0;    // from 1
  int column = 0;  // from 1
};
std::string to_string(const Place& p) {
  return p.line > 0 ? format("{}:{}:{}", p.file, p.line, p.column) : p.file;
}

[[noreturn]] void fail_at(const Place& place, const std::string& message) {
  throw ConfigError(format("{}: {}", to_string(place), message));
}

Place place_of(const std::string& name, const YAML::Mark& mark) {
  return {name, mark.line >= 0 ? mark.line + 1 : 1, mark.column >= 0 ? mark.column + 1 : 1};
}

// Bytes that YAML readers disagree about, or that hide what a file says, are refused before any of
// them reads it: the file is what it looks like.
void check_bytes(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) {
    throw ConfigError(format("{}: {} bytes; a configuration has at most {}", name, text.size(), kMostBytes));
  }
  int line = 1;
  int column = 1;
  int depth = 0;
  char quote = 0;       // the open quote
  Place opened;
  char before = '\n';   // the last character that is no space, '\n' at the start of a line
  bool space = true;    // the last character was a space or a line's start
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const Place here{name, line, column};
    if (c == '\t') {
      fail_at(here, "a tab; YAML indents with spaces");
    }
    if ((c < 0x20 && c != '\n' && c != '\r') || c == 0x7F) {
      fail_at(here, format("a control character (code {}); the file is no text", int(c)));
    }
    if (c >= 0x80) {
      const int more = c >= 0xF0 && c < 0xF5 ? 3 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xC2 && c < 0xE0 ? 1 : 0;
      bool good = more > 0 && i + std::size_t(more) < text.size() + 0;
      for (int k = 1; good && k <= more; ++k) {
        good = (static_cast<unsigned char>(text[i + std::size_t(k)]) & 0xC0) == 0x80;
      }
      if (!good) {
        fail_at(here, "a byte that is not UTF-8; save the file as UTF-8");
      }
      i += std::size_t(more);
      ++column;
      before = 'x';
      space = false;
      continue;
    }
    if (c == '\n') {
      ++line;
      column = 1;
      if (quote == 0) {
        before = '\n';
      }
      space = true;
      continue;
    }
    if (quote != 0) {
      if (quote == '"' && c == '\\') {
        ++i;
        column += 2;
        continue;
      }
      if (c == static_cast<unsigned char>(quote)) {
        quote = 0;
        before = 'x';
      }
    } else if (c == '#' && space) {
      while (i + 1 < text.size() && text[i + 1] != '\n') {
        ++i;
      }
    } else if ((c == '"' || c == '\'') &&
               (before == '\n' || before == ':' || before == ',' || before == '[' || before == '{' ||
                before == '-')) {
      quote = char(c);
      opened = here;
    } else if ((c == '&' || c == '*' || c == '!' || c == '|' || c == '>' || c == '@' || c == '`') &&
               space && (before == '\n' || before == ':' || before == ',' || before == '[' || before == '-')) {
      fail_at(here, format("\"{}\" begins an anchor, alias, tag or block of text; none of them are used in "
                           "configurations; put text that begins so in quotes",
                           char(c)));
    } else if (c == '[' || c == '{') {
      if (++depth > 32) {
        fail_at(here, "brackets are nested deeper than 32");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
    space = c == ' ';
    if (c != ' ' && quote == 0) {
      before = char(c);
    }
    ++column;
  }
  if (quote != 0) {
    fail_at(opened, format("this quote is never closed; add {}", quote));
  }
}

Value value_from(const YAML::Node& node, const Place& place, const std::string& path) {
  const auto scalar = [&](const YAML::Node& n) {
    if (!n.IsScalar()) {
      fail_at(place, format("{}: expected a value, found {}", path,
                            n.IsMap() ? "a section" : n.IsNull() ? "nothing; write a value or remove the key"
                                                                 : "a list inside a list"));
    }
    return n.Scalar();
  };
  Value v;
  if (node.IsSequence()) {
    v.list = true;
    if (node.size() > 4096) {
      fail_at(place, format("{}: a list of {} items; at most 4096", path, node.size()));
    }
    for (const YAML::Node& n : node) {
      v.items.push_back(scalar(n));
      v.quoted = v.quoted || n.Tag() == "!";
    }
  } else {
    v.items.push_back(scalar(node));
    v.quoted = node.Tag() == "!";
  }
  return v;
}

std::string unknown_key(const std::string& path) {
  const std::string near = schema::nearest(path);
  return format("{}: unknown key{}; `penstock config` lists all keys", in_quotes(path),
                near.empty() ? "" : format("; nearest: {}", near));
}

void assign(Config& config, const Key& key, const Value& value, const Place& place,
            const std::string& written, const std::string& origin) {
  try {
    key.set(config, value);
  } catch (const ConfigError& e) {
    fail_at(place, format("{}: {}", written, e.what()));
  }
  config.origins[key.path] = origin;
}

void read_yaml(Config& config, std::string_view text, const std::string& name) {
  check_bytes(text, name);
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(std::string(text));
  } catch (const YAML::Exception& e) {
    fail_at(place_of(name, e.mark), format("not YAML: {}", e.msg));
  }
  if (documents.size() > 1) {
    throw ConfigError(format("{}: {} documents (\"---\"); a configuration is one", name, documents.size()));
  }
  if (documents.empty() || documents[0].IsNull()) {
    throw ConfigError(format("{}:1:1: the file is empty; it needs at least model.name and data.name", name));
  }
  const YAML::Node& root = documents[0];
  if (!root.IsMap()) {
    fail_at(place_of(name, root.Mark()), "expected sections such as \"model:\", found something else");
  }
  std::map<std::string, Place> seen;
  std::set<std::string> sections;
  for (const Key& k : schema::table()) {
    sections.insert(k.path.substr(0, k.path.find('.')));
  }
  std::set<std::string> read;
  for (const auto& section : root) {
    const Place at = place_of(name, section.first.Mark());
    if (!section.first.IsScalar()) {
      fail_at(at, "a section's name must be a word");
    }
    const std::string& word = section.first.Scalar();
    if (sections.count(word) == 0) {
      // A key without its section is the commonest slip.
      fail_at(at, unknown_key(word));
    }
    if (!read.insert(word).second) {
      fail_at(at, format("{}: this section is there twice; merge them", word));
    }
    if (section.second.IsNull()) {
      continue;
    }
    if (!section.second.IsMap()) {
      fail_at(place_of(name, section.second.Mark()),
              format("{}: expected a section with keys, found a value", word));
    }
    for (const auto& entry : section.second) {
      const Place place = place_of(name, entry.first.Mark());
      if (!entry.first.IsScalar()) {
        fail_at(place, "a key must be a word");
      }
      const std::string path = word + "." + entry.first.Scalar();
      const Key* key = schema::find(path);
      if (key == nullptr) {
        fail_at(place, unknown_key(path));
      }
      const auto [known, fresh] = seen.emplace(key->path, place);
      if (!fresh) {
        fail_at(place, format("{}: this key is there twice, first at line {}; remove one", path,
                              known->second.line));
      }
      const Place value_place =
          entry.second.IsNull() ? place : place_of(name, entry.second.Mark());
      assign(config, *key, value_from(entry.second, value_place, path), value_place, path,
             to_string(value_place));
    }
  }
}

// The value of --set: a scalar or [a, b].
void read_override(Config& config, const std::string& text) {
  const std::size_t equals = text.find('=');
  const Place place{"--set", 0, 0};
  if (equals == std::string::npos || equals == 0) {
    fail_at(place, format("{}: expected key.path=value", in_quotes(text)));
  }
  const std::string path = text.substr(0, equals);
  const std::string written = text.substr(equals + 1);
  const Key* key = schema::find(path);
  if (key == nullptr) {
    fail_at(place, unknown_key(path));
  }
  Value value;
  if (written.empty()) {
    // An empty value takes the default back.
    const Config fresh = default_config();
    const std::string fallback = key->text(fresh);
    if (fallback.empty()) {
      value.items = {""};
      if (key->type != "text") {
        fail_at(place, format("{}: expected {}, found nothing", path, key->type));
      }
      assign(config, *key, value, place, path, "--set");
      return;
    }
    read_override(config, path + "=" + fallback);
    return;
  }
  check_bytes(written, "--set " + path);
  if (written.front() == '[') {
    try {
      value = value_from(YAML::Load(written), place, path);
    } catch (const YAML::Exception& e) {
      fail_at(place, format("{}: {}: not a list: {}", path, in_quotes(written), e.msg));
    }
  } else if (written.size() >= 2 && written.front() == '"' && written.back() == '"') {
    value.items = {written.substr(1, written.size() - 2)};
  } else {
    value.items = {written};
  }
  assign(config, *key, value, place, path, "--set");
}

void check_together(const Config& c) {
  const auto where = [&](const char* key) { return origin_of(c, key); };
  for (const Key& k : schema::table()) {
    if (k.required && c.origins.count(k.path) == 0) {
      throw ConfigError(format("{}: {} is missing; expected {}", c.source, k.path, k.type));
    }
  }
  if (c.model.attention_dropout != 0) {
    throw ConfigError(format("{}: model.attention_dropout: {} is not available, because attention runs "
                             "fused; expected 0 (model.dropout acts on the projections)",
                             where("model.attention_dropout"), c.model.attention_dropout));
  }
  if (c.optimizer.betas.size() != 2 || c.optimizer.betas[0] < 0 || c.optimizer.betas[0] >= 1 ||
      c.optimizer.betas[1] < 0 || c.optimizer.betas[1] >= 1) {
    throw ConfigError(format("{}: optimizer.betas: expected two numbers from 0 to below 1",
                             where("optimizer.betas")));
  }
  if (c.data.mean.size() != c.data.deviation.size() || c.data.mean.size() > 4) {
    throw ConfigError(format("{}: data.mean and data.deviation: {} and {} values; expected one per channel "
                             "in both",
                             where("data.mean"), c.data.mean.size(), c.data.deviation.size()));
  }
  for (const double d : c.data.deviation) {
    if (d <= 0) {
      throw ConfigError(format("{}: data.deviation: {}; expected positive numbers", where("data.deviation"), d));
    }
  }
  if (c.schedule.warmup.unit == Period::Unit::kSeconds || c.schedule.decay.unit == Period::Unit::kSeconds) {
    throw ConfigError(format("{}: schedule.warmup and schedule.decay count samples, steps, epochs or % of "
                             "the run; a time would make the numbers depend on the machine",
                             where("schedule.warmup")));
  }
}

}  // namespace

Config default_config() {
  Config c;
  c.source = "defaults";
  for (const Key& k : schema::table()) {
    if (k.fallback.empty()) {
      continue;
    }
    Value v;
    if (k.fallback.front() == '[') {
      v.list = true;
      std::stringstream items(k.fallback.substr(1, k.fallback.size() - 2));
      std::string item;
      while (std::getline(items, item, ',')) {
        item.erase(0, item.find_first_not_of(' '));
        v.items.push_back(item);
      }
    } else {
      v.items = {k.fallback};
    }
    k.set(c, v);
  }
  return c;
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
    text = read_text(path, i64(kMostBytes));
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
      "# Every key of a configuration with its default. A file needs model.name and data.name only.\n";
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
      out += format("  {}: # required\n", name);
    } else if (k.fallback.empty()) {
      out += format("  # {}:\n", name);
    } else {
      out += format("  {}: {}\n", name, k.fallback);
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

void check_resume(const Config& saved, const Config& now) {
  std::string frozen;
  for (const KeyChange& change : differences(saved, now)) {
    if (schema::find(change.key)->resume == schema::Resume::kFrozen) {
      frozen += format("\n  {}: {} in the checkpoint, {} now ({})", change.key, change.before, change.after,
                       origin_of(now, change.key));
    }
  }
  if (now.train.epochs < saved.train.epochs) {
    frozen += format("\n  train.epochs: {} in the checkpoint, {} now; it may only grow", saved.train.epochs,
                     now.train.epochs);
  }
  if (!frozen.empty()) {
    throw ConfigError(format("{}: these keys are fixed once a run has begun:{}\nSet them back, or start a "
                             "new run in another folder",
                             now.source, frozen));
  }
}

}  // namespace penstock::io
