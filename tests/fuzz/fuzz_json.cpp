// JSON: any bytes are either refused with DataError, or are a value whose text reads back to the
// same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "framework/core/check.h"
#include "framework/io/json.h"

using namespace penstock;
using namespace penstock::io;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  // Any bytes may be a string or a key; what is written is JSON.
  Json any = Json::object();
  any.set(text, text);
  const std::string line = any.dump();
  if (Json::parse(line, "own").dump() != line || line.find('\n') != std::string::npos) {
    std::abort();
  }
  try {
    const Json value = Json::parse(text, "fuzz");
    const std::string first = value.dump();
    const std::string second = Json::parse(first, "again").dump();
    if (first != second || Json::parse(value.dump(true), "lines").dump() != first) {
      std::abort();
    }
  } catch (const DataError& e) {
    if (!std::string(e.what()).starts_with("fuzz")) {
      std::abort();
    }
  }
  return 0;
}
