// Configuration: any bytes, as a file or as an override, are either refused with a ConfigError of a
// few printable words, or are a configuration that survives writing and reading.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "framework/io/config.h"
#include "framework/io/schema.h"

using namespace penstock;
using namespace penstock::io;

namespace {

const char* const kGood = "model:\n  name: mlp\ndata:\n  name: mnist\n";

void read(const std::string& text, const std::vector<std::string>& overrides) {
  try {
    const Config config = parse_config(text, "fuzz", overrides);
    const std::string written = to_yaml(config, true);
    const Config again = parse_config(written, "again");
    if (!differences(config, again).empty() || to_yaml(again) != to_yaml(config)) {
      std::abort();
    }
  } catch (const ConfigError& e) {
    const std::string message = e.what();
    if (message.size() > 2000 || message.starts_with("again")) {
      std::abort();
    }
    for (const char c : message) {
      if (c < 0x20 || c == 0x7F) {
        std::abort();
      }
    }
  }
}

}  // namespace

// The first byte chooses: a whole file, the rest of a good one, an override, or a word for hints.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    read("", {});
    return 0;
  }
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case '1': read(kGood + text, {}); break;
    case '2': read(kGood, {text}); break;
    case '3': {
      const std::string near = schema::nearest(text);
      if (!near.empty() && schema::find(near) == nullptr) {
        std::abort();
      }
      (void)schema::nearest_section(text);
      (void)completions(text);
      break;
    }
    default: read(text, {}); break;
  }
  return 0;
}
