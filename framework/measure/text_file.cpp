#include "framework/measure/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "framework/core/check.h"

namespace penstock::measure {
namespace {

std::string reason(int code) {
  return std::generic_category().message(code);
}

// Closes a descriptor at the end of a scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) {
      ::close(fd);
    }
  }
};

// All of `text`, over short writes and interruptions; the error number or 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return errno;
    }
    text.remove_prefix(written < 0 ? 0 : std::size_t(written));
  }
  return 0;
}

}  // namespace

void write_whole_file(const std::string& path, std::string_view text) {
  static std::atomic<unsigned> counter{0};
  const std::string beside = format("{}.tmp-{}-{}", path, long(::getpid()), counter.fetch_add(1));
  int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) {
    throw StorageError(
        format("write {}: a new file beside it cannot be made: {}", path, reason(errno)));
  }
  int error = write_all(fd, text);
  if (::close(fd) != 0 && error == 0) {
    error = errno;
  }
  if (error == 0 && ::rename(beside.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(beside.c_str());
    throw StorageError(format("write {} ({} bytes): {}; the file there before is unchanged", path,
                              text.size(), reason(error)));
  }
}

std::optional<std::string> read_whole_file(const std::string& path, i64 cap) {
  // Non-blocking, so that a FIFO put there cannot hang the reader.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  if (file.fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return std::nullopt;
    }
    throw DataError(format("read {}: {}", path, reason(errno)));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    throw DataError(format("read {}: not a regular file", path));
  }
  if (info.st_size > cap) {
    throw DataError(format("read {}: {} bytes, at most {} are read", path, i64(info.st_size), cap));
  }
  std::string text(std::size_t(info.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.fd, text.data() + filled, text.size() - filled);
    if (got < 0 && errno != EINTR) {
      throw DataError(format("read {}: {}", path, reason(errno)));
    }
    if (got == 0) {
      break;  // it shrank meanwhile
    }
    filled += got < 0 ? 0 : std::size_t(got);
  }
  text.resize(filled);
  return text;
}

bool make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return std::filesystem::is_directory(path, error);
}

}  // namespace penstock::measure
