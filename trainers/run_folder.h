// The folder of a run: who owns it, what it holds, what it says afterwards.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/io/checkpoint_store.h"
#include "framework/io/config.h"
#include "framework/io/journal.h"
#include "framework/io/json.h"
#include "framework/io/lock.h"
#include "framework/io/tensorboard.h"

namespace penstock::trainers {

// Open for writing by one process; made when it is not there.
class RunFolder {
 public:
  // `path`: the folder, or empty for runs/NAME-N with the next free N.
  RunFolder(const std::string& path, const io::Config& config);
  const std::string& path() const { return path_; }
  const std::string& identity() const { return identity_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string checkpoints() const { return file("checkpoints"); }

 private:
  std::string path_;
  std::unique_ptr<io::RunLock> lock_;
  std::string identity_;
};

// The name of a configuration's run: run.name, or the file's name without its end.
std::string run_name(const io::Config& config);
// Makes the folder and its parents. Throws StorageError.
void make_folders(const std::string& path);
// summary.json of a run folder; none when there is none. Throws DataError for a damaged one.
std::optional<io::Json> read_summary(const std::string& folder);

}  // namespace penstock::trainers
