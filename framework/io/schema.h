// The schema table behind the configuration: one row per key.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "framework/io/config.h"

namespace penstock::io::schema {

// What a resumed run may do with a key.
enum class Resume : std::uint8_t {
  kFree,        // logging, workers, limits: anything
  kExtendable,  // epochs: more, not less
  kFrozen,      // model, data, seed: the same
};

// A scalar or list as the file has it.
struct Value {
  std::vector<std::string> items;
  bool list = false;
  bool quoted = false;  // any item was in quotes
};

struct Key {
  std::string path;
  std::string type;      // for people: "integer", "bytes", "one of a, b"
  std::string fallback;  // default, as a file would have it; empty for none
  Resume resume = Resume::kFrozen;
  std::string help;
  std::vector<std::string> choices;
  bool required = false;
  // Sets the value or throws ConfigError with what was expected; no place in the message.
  std::function<void(Config&, const Value&)> set;
  std::function<std::string(const Config&)> text;
};

const std::vector<Key>& table();
// Old or common names of keys: "loader.num_workers" -> "loader.workers".
const std::vector<std::pair<std::string, std::string>>& aliases();
// The key, through aliases; null when there is none.
const Key* find(const std::string& path);
// The closest key to a path that is none, also by what other programs call it; empty when nothing
// is close.
std::string nearest(const std::string& path);
// The closest of some words; empty when nothing is close.
std::string nearest_word(const std::string& word, const std::vector<std::string>& choices);
// In the order of the table.
const std::vector<std::string>& sections();
// The closest section to a word that is none; empty when nothing is close.
std::string nearest_section(const std::string& word);

}  // namespace penstock::io::schema
