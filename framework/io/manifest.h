// The manifest of a checkpoint: which files belong to it, with their sizes and checksums, and where
// in the run it stands. It is written last, so a folder that holds one is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/io/files.h"

namespace penstock::io {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr i64 kManifestBytes = i64{1} << 20;

struct ManifestFile {
  std::string name;
  i64 bytes = 0;
  std::uint64_t checksum = 0;  // XXH3-64
};

struct Manifest {
  static constexpr i64 kFormat = 1;
  std::string run;     // identity of the run that wrote it
  std::string writer;  // "penstock 0.1.0"
  i64 sequence = 0;    // rises by one with every commit of the run: the newest has the highest
  i64 step = 0;
  i64 position = 0;  // samples seen
  std::string metric_name;
  std::optional<double> metric;  // may be NaN or infinite; then it is never the best
  std::string previous;          // folder name of the commit before; empty for the first
  std::vector<ManifestFile> files;
};

// A checkpoint written by a newer version of the format: valid, and not ours to judge.
class NewerFormat : public StorageError {
 public:
  using StorageError::StorageError;
};

// The one text of a manifest; its last member is the checksum of everything before it.
std::string manifest_text(const Manifest& manifest);
// The manifest in `text`, which came from `path`. Throws StorageError for everything that
// manifest_text() would not write, NewerFormat for a later format.
Manifest parse_manifest(std::string_view text, const std::string& path);

// A name that a file of a checkpoint may have: letters, digits, '.', '_' and '-', not first a '.',
// at most 64.
bool is_plain_name(std::string_view name);

}  // namespace penstock::io
