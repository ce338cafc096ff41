#include "framework/io/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "framework/core/log.h"

namespace penstock::io {
namespace {

constexpr const char* kLockName = "/run.lock";
constexpr const char* kIdentityName = "/run.id";

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// "process 4711 on host node3"; what the lock file says may be anything.
std::string owner(int fd) {
  std::array<char, 400> text{};
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  if (got <= 0) {
    return "another process";
  }
  const std::string_view line(text.data(), std::size_t(got));
  return in_quotes(line.substr(0, line.find('\n')), 300);
}

bool is_identity(std::string_view text) {
  return text.size() == 16 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

RunLock::RunLock(const std::string& folder) : path_(folder + kLockName) {
  fd_ = Descriptor(
      ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd_) {
    throw_file_error("open", path_);
  }
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw StorageError(format("lock {}: expected a regular file", path_));
  }
  int result = -1;
  do {
    result = ::flock(fd_.get(), LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    if (errno == EWOULDBLOCK) {
      throw StorageError(
          format("run folder {} is in use by {}: wait for it to end, or choose "
                 "another folder with --out",
                 folder, owner(fd_.get())));
    }
    if (errno != ENOLCK && errno != ENOTSUP && errno != ENOSYS) {
      throw_file_error("lock", path_);
    }
    log::warning(
        "lock {}: this file system has no locks; see to it that no second process uses "
        "this folder",
        path_);
  }
  // For whoever finds it taken. On a full disk the lock holds all the same.
  const std::string line = format("process {} on host {}\n", ::getpid(), host_name());
  if (::ftruncate(fd_.get(), 0) != 0 ||
      ::pwrite(fd_.get(), line.data(), line.size(), 0) != ssize_t(line.size())) {
    log::debug("lock {}: the owner could not be noted", path_);
  }
  remove_unfinished(folder);
}

std::string run_identity(const std::string& folder) {
  const std::string path = folder + kIdentityName;
  try {
    const std::string text = read_text(path, 17, Links::kRefuse);
    const std::string_view id = std::string_view(text).substr(0, 16);
    if (is_identity(id)) {
      return std::string(id);
    }
    throw StorageError(
        format("{}: expected sixteen hexadecimal digits, found {}", path, in_quotes(text)));
  } catch (const FileError& e) {
    if (!e.missing()) {
      throw;
    }
  }
  const std::string id = random_suffix() + random_suffix();
  replace_file(path, id + "\n");
  return id;
}

}  // namespace penstock::io
