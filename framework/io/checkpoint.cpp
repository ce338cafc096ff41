#include "framework/io/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "framework/core/log.h"

namespace penstock::io {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kBad = ".bad";

std::string inside(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

// Are the contents at fault? A refused permission or a lack of descriptors is the system's fault,
// and another checkpoint must not quietly take this one's place.
bool is_damage(const StorageError& error) {
  const auto* file = dynamic_cast<const FileError*>(&error);
  if (file == nullptr) {
    return true;
  }
  const int e = file->facts().error;
  return e != EACCES && e != EPERM && e != EMFILE && e != ENFILE && e != ENOMEM && e != ETIMEDOUT;
}

// The manifest of `path`, with every file there and of the right size.
Manifest read_manifest(const std::string& path) {
  const std::string name = inside(path, kManifestName);
  Manifest manifest = parse_manifest(read_text(name, kManifestBytes, Links::kRefuse), name);
  for (const ManifestFile& file : manifest.files) {
    const InputFile input(inside(path, file.name), Links::kRefuse);
    if (input.size() != file.bytes) {
      throw StorageError(format("checkpoint {}: {} has {} bytes, the manifest says {}", path,
                                file.name, input.size(), file.bytes));
    }
  }
  return manifest;
}

std::string list_of(const std::vector<CheckpointScan::Refused>& refused) {
  std::string text;
  for (const auto& one : refused) {
    text += "\n  " + one.reason;
  }
  return text;
}

// Renames a damaged checkpoint so that no later look takes it for one. Kept for whoever wants to
// examine it.
void set_aside(const std::string& folder, const CheckpointScan::Refused& damaged) {
  for (int i = 0; i < 100; ++i) {
    const std::string to = damaged.path + std::string(kBad) + (i == 0 ? "" : format("-{}", i));
    if (is_folder(to)) {
      continue;
    }
    try {
      rename_path(damaged.path, to);
      sync_folder(folder);
      log::warning("resume: {}; set aside as {}", damaged.reason, to);
    } catch (const FileError& e) {
      log::warning("resume: {}; it could not be set aside ({})", damaged.reason, e.what());
    }
    return;
  }
}

void refuse_newer(const CheckpointScan& scan) {
  if (!scan.newer.empty()) {
    throw NewerFormat(scan.newer.front().reason);
  }
}

// The first of `candidates` (last one first) that verifies; the others join `damaged`.
std::optional<Checkpoint> first_valid(std::vector<FoundCheckpoint> candidates,
                                      std::vector<CheckpointScan::Refused>& damaged) {
  while (!candidates.empty()) {
    const std::string path = candidates.back().path;
    candidates.pop_back();
    try {
      return Checkpoint(path);
    } catch (const StorageError& e) {
      if (!is_damage(e)) {
        throw;
      }
      damaged.push_back({path, e.what()});
    }
  }
  return std::nullopt;
}

}  // namespace

i64 FoundCheckpoint::bytes() const {
  i64 sum = 0;
  for (const ManifestFile& file : manifest.files) {
    sum += file.bytes;
  }
  return sum;
}

std::string checkpoint_name(i64 step, int again) {
  std::string digits = format("{}", step);
  digits.insert(0, digits.size() < 8 ? 8 - digits.size() : 0, '0');
  return std::string(kPrefix) + digits + (again > 0 ? format(".{}", again) : "");
}

bool is_checkpoint_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return false;
  }
  name.remove_prefix(kPrefix.size());
  i64 step = 0;
  int again = 0;
  const char* end = name.data() + name.size();
  auto result = std::from_chars(name.data(), end, step);
  if (result.ec != std::errc() || step < 0) {
    return false;
  }
  if (result.ptr != end && *result.ptr == '.') {
    result = std::from_chars(result.ptr + 1, end, again);
  }
  return result.ec == std::errc() && result.ptr == end &&
         name == checkpoint_name(step, again).substr(kPrefix.size());
}

CheckpointScan scan_checkpoints(const std::string& folder) {
  CheckpointScan scan;
  if (!is_folder(folder, Links::kFollow)) {
    return scan;
  }
  for (const std::string& name : list_folder(folder)) {
    const std::string path = inside(folder, name);
    const std::size_t bad = name.rfind(kBad);
    if (bad != std::string::npos && is_checkpoint_name(name.substr(0, bad))) {
      ++scan.set_aside;
    }
    if (!is_checkpoint_name(name)) {
      continue;
    }
    if (!is_folder(path)) {
      log::warning("checkpoint {}: not a folder (a link or a file): passed over", path);
      continue;
    }
    try {
      scan.valid.push_back({.path = path, .name = name, .manifest = read_manifest(path)});
    } catch (const NewerFormat& e) {
      scan.newer.push_back({path, e.what()});
    } catch (const StorageError& e) {
      if (!is_damage(e)) {
        throw;
      }
      scan.damaged.push_back({path, e.what()});
    }
  }
  std::stable_sort(scan.valid.begin(), scan.valid.end(),
                   [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
                     return a.manifest.sequence < b.manifest.sequence;
                   });
  return scan;
}

Checkpoint::Checkpoint(const std::string& path) : path_(path) {
  if (!is_folder(path, Links::kFollow)) {
    throw StorageError(format("checkpoint {}: expected a folder such as checkpoints/{}, found none",
                              path, checkpoint_name(1200)));
  }
  manifest_ = read_manifest(path);
  for (const ManifestFile& file : manifest_.files) {
    const std::uint64_t found = file_checksum(inside(path, file.name), Links::kRefuse);
    if (found != file.checksum) {
      throw StorageError(
          format("checkpoint {}: the contents of {} are damaged (checksum {}, the "
                 "manifest says {})",
                 path, file.name, checksum_text(found), checksum_text(file.checksum)));
    }
  }
}

bool Checkpoint::has(std::string_view name) const {
  return std::any_of(manifest_.files.begin(), manifest_.files.end(),
                     [&](const ManifestFile& file) { return file.name == name; });
}

std::string Checkpoint::text(const std::string& name, i64 max_bytes) const {
  if (!has(name)) {
    throw StorageError(format("checkpoint {}: it has no file {}", path_, in_quotes(name)));
  }
  return read_text(inside(path_, name), max_bytes, Links::kRefuse);
}

SafetensorsFile Checkpoint::tensors(const std::string& name) const {
  if (!has(name)) {
    throw StorageError(format("checkpoint {}: it has no file {}", path_, in_quotes(name)));
  }
  return SafetensorsFile(inside(path_, name), Links::kRefuse);
}

std::optional<Checkpoint> resume_newest(const std::string& folder) {
  CheckpointScan scan = scan_checkpoints(folder);
  refuse_newer(scan);
  if (scan.valid.empty() && scan.damaged.empty() && scan.set_aside == 0) {
    return std::nullopt;
  }
  std::optional<Checkpoint> found = first_valid(scan.valid, scan.damaged);
  if (!found) {
    throw StorageError(format(
        "resume: no checkpoint in {} is valid; a new run would lose what was "
        "trained, so none is begun{}{}",
        folder, list_of(scan.damaged),
        scan.set_aside > 0 ? format("\n  {} set aside earlier (.bad)", scan.set_aside) : ""));
  }
  for (const auto& damaged : scan.damaged) {
    set_aside(folder, damaged);
  }
  if (!scan.damaged.empty()) {
    log::warning("resume: falling back to {} (step {})", found->path(), found->manifest().step);
  }
  return found;
}

std::optional<Checkpoint> open_best(const std::string& folder, Better better) {
  CheckpointScan scan = scan_checkpoints(folder);
  refuse_newer(scan);
  std::erase_if(scan.valid, [&](const FoundCheckpoint& c) {
    return !c.manifest.metric || !improves(*c.manifest.metric, std::nullopt, better);
  });
  // The best one last; of equal ones the earlier.
  std::stable_sort(scan.valid.begin(), scan.valid.end(),
                   [&](const FoundCheckpoint& a, const FoundCheckpoint& b) {
                     if (*a.manifest.metric != *b.manifest.metric) {
                       return improves(*b.manifest.metric, a.manifest.metric, better);
                     }
                     return a.manifest.sequence > b.manifest.sequence;
                   });
  return first_valid(std::move(scan.valid), scan.damaged);
}

}  // namespace penstock::io
