// Manifest: any text is either refused with StorageError or is the one text of what was read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "framework/io/manifest.h"

using namespace penstock;
using namespace penstock::io;

namespace {

// With the last line of what a manifest of these bytes would have, so that what lies behind the
// check of the checksum is reached.
std::string sealed(std::string text) {
  const std::size_t line = text.rfind("  \"checksum\"");
  text.resize(line == std::string::npos ? text.size() : line);
  const std::string sum = checksum_text(checksum_of(std::as_bytes(std::span(text))));
  return text + "  \"checksum\": \"" + sum + "\"\n}\n";
}

void read(const std::string& text) {
  try {
    const Manifest manifest = parse_manifest(text, "fuzz");
    if (manifest_text(manifest) != text) {
      std::abort();
    }
    for (const ManifestFile& file : manifest.files) {
      if (!is_plain_name(file.name) || file.bytes < 0) {
        std::abort();
      }
    }
  } catch (const StorageError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(text);
  read(sealed(text));
  return 0;
}
