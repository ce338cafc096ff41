// Whose run folder is it? One process at a time, and the same identity over all restarts.
#pragma once

#include <string>

#include "framework/io/files.h"

namespace penstock::io {

// Holds <folder>/run.lock until it goes. The system drops it with the process, however that ends.
// Removes what a killed owner had begun to write there.
class RunLock {
 public:
  // Throws StorageError naming the owner's process id and host when another process holds it.
  explicit RunLock(const std::string& folder);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Descriptor fd_;
};

// The identity of the run in `folder` (sixteen hexadecimal digits, in <folder>/run.id), made on the
// first call. Checkpoints carry it, so that a run only ever removes what it made itself.
std::string run_identity(const std::string& folder);

}  // namespace penstock::io
