#include "trainers/run_folder.h"

#include <cerrno>
#include <cstring>
#include <sys/stat.h>

#include "framework/io/files.h"

namespace penstock::trainers {

std::string run_name(const io::Config& config) {
  if (!config.run.name.empty()) {
    return config.run.name;
  }
  std::string name = config.source.substr(config.source.rfind('/') + 1);
  const std::size_t dot = name.rfind('.');
  if (dot != std::string::npos && dot > 0) {
    name.resize(dot);
  }
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.';
    c = plain ? c : '_';
  }
  return name.empty() ? "run" : name;
}

void make_folders(const std::string& path) {
  for (std::size_t at = 1; at <= path.size(); ++at) {
    if (at == path.size() || path[at] == '/') {
      const std::string part = path.substr(0, at);
      if (part.empty() || part.back() == '/' || part == ".") {
        continue;
      }
      if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {
        throw StorageError(format("{}: the folder cannot be made: {}", part, std::strerror(errno)));
      }
    }
  }
  if (!io::is_folder(path, io::Links::kFollow)) {
    throw StorageError(format("{}: expected a folder, found something else", path));
  }
}

RunFolder::RunFolder(const std::string& path, const io::Config& config) {
  if (!path.empty()) {
    path_ = path;
    make_folders(path_);
  } else {
    make_folders("runs");
    const std::string base = "runs/" + run_name(config) + "-";
    // mkdir is what decides between two processes that start at once.
    for (int n = 1;; ++n) {
      path_ = base + std::to_string(n);
      if (mkdir(path_.c_str(), 0777) == 0) {
        break;
      }
      if (errno != EEXIST || n >= 100'000) {
        throw StorageError(format("{}: the folder cannot be made: {}", path_, std::strerror(errno)));
      }
    }
  }
  lock_ = std::make_unique<io::RunLock>(path_);
  identity_ = io::run_identity(path_);
  make_folders(checkpoints());
}

std::optional<io::Json> read_summary(const std::string& folder) {
  const std::string path = folder + "/summary.json";
  struct stat st {};
  if (stat(path.c_str(), &st) != 0) {
    return std::nullopt;
  }
  return io::Json::parse(io::read_text(path, i64{8} << 20), path);
}

}  // namespace penstock::trainers
