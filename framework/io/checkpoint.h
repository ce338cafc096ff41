// Checkpoints as committed folders, the reading side. checkpoints/step-00001200/ holds its files
// and a manifest; it took that name when all of it was on disk. "Newest" is the valid folder with
// the highest sequence number, found by looking, never through a link.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framework/io/checkpoint_policy.h"
#include "framework/io/manifest.h"
#include "framework/io/safetensors.h"

namespace penstock::io {

// The names of the files in every checkpoint of a training run.
inline constexpr const char* kModelFile =
    "model.safetensors";  // weights and buffers, public layout
inline constexpr const char* kStateFile = "state.safetensors";  // optimizer, loss scale, step state
inline constexpr const char* kRunFile = "run.json";  // cursor, counters, history, versions

// A folder whose manifest has been read; the files' sizes agree, their contents were not hashed.
struct FoundCheckpoint {
  std::string path;
  std::string name;  // "step-00001200"
  Manifest manifest;
  i64 bytes() const;
};

struct CheckpointScan {
  struct Refused {
    std::string path;
    std::string reason;
  };
  std::vector<FoundCheckpoint> valid;  // by rising sequence
  std::vector<Refused> damaged;
  std::vector<Refused> newer;  // of a later format
  i64 set_aside = 0;           // folders that an earlier resume renamed to .bad
};

// "step-00001200"; with `again` > 0 "step-00001200.1": a step saved twice.
std::string checkpoint_name(i64 step, int again = 0);
bool is_checkpoint_name(std::string_view name);

// Looks at every step-* folder of `folder` and changes nothing. Links and files of such names are
// passed over. Throws FileError when the system, not the contents, is at fault (permissions).
CheckpointScan scan_checkpoints(const std::string& folder);

// A checkpoint whose every byte has been verified.
class Checkpoint {
 public:
  // Exactly this one: throws StorageError when it is damaged or not there, and never takes another.
  explicit Checkpoint(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  bool has(std::string_view name) const;
  std::string text(const std::string& name, i64 max_bytes = i64{64} << 20) const;
  SafetensorsFile tensors(const std::string& name) const;

 private:
  std::string path_;
  Manifest manifest_;
};

// The newest valid checkpoint of `folder`. Damaged ones are named in a warning, renamed to
// <name>.bad and skipped. None when there never was one. Throws StorageError when there are some
// and none is valid, or when one is of a newer format: a run is never silently begun anew.
std::optional<Checkpoint> resume_newest(const std::string& folder);
// The valid checkpoint with the best finite metric; none when there is none.
std::optional<Checkpoint> open_best(const std::string& folder, Better better);

}  // namespace penstock::io
