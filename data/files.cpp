#include "data/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "framework/core/check.h"

namespace penstock::data {
namespace {

int open_regular(const std::string& path, i64& size) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    throw DataError(format("{}: cannot be opened: {}", path, std::strerror(errno)));
  }
  struct stat st {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    throw DataError(format("{}: not a regular file", path));
  }
  size = st.st_size;
  return fd;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = open_regular(path, size_);
  if (size_ > 0) {
    void* p = mmap(nullptr, std::size_t(size_), PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (p == MAP_FAILED) {
      throw DataError(format("{}: cannot be mapped: {}", path, std::strerror(error)));
    }
    data_ = static_cast<const std::byte*>(p);
  } else {
    close(fd);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), std::size_t(size_));
  }
}

std::vector<std::byte> read_inflated(const std::string& path, std::size_t header_bytes,
                                     i64 (*expected)(std::span<const std::byte>, const std::string&)) {
  i64 size = 0;
  const int fd = open_regular(path, size);
  gzFile raw = gzdopen(fd, "rb");
  if (raw == nullptr) {
    close(fd);
    throw DataError(format("{}: cannot be read", path));
  }
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(raw, gzclose);
  gzbuffer(raw, 1 << 18);
  std::vector<std::byte> bytes(header_bytes);
  const auto read = [&](std::size_t at, std::size_t count) {
    std::size_t done = 0;
    while (done < count) {
      const auto piece = unsigned(std::min<std::size_t>(count - done, std::size_t{1} << 30));
      const int n = gzread(raw, bytes.data() + at + done, piece);
      if (n < 0) {
        int code = 0;
        const char* why = gzerror(raw, &code);
        throw DataError(format("{}: damaged: {}", path, code == Z_ERRNO ? std::strerror(errno) : why));
      }
      if (n == 0) {
        break;
      }
      done += std::size_t(n);
    }
    return done;
  };
  if (read(0, header_bytes) < header_bytes) {
    throw DataError(format("{}: shorter than its header of {} bytes", path, header_bytes));
  }
  const i64 total = expected(bytes, path);
  // A plain file's size is known; a gzip stream holds at most 1,032 times its own size.
  const i64 most = gzdirect(raw) != 0 ? size : size * 1032 + 1024;
  if (total > most) {
    throw DataError(format("{}: its header asks for {} bytes, and the file holds at most {}", path,
                           total, most));
  }
  bytes.resize(std::size_t(total));
  const std::size_t got = read(header_bytes, std::size_t(total) - header_bytes) + header_bytes;
  if (got < std::size_t(total)) {
    throw DataError(format("{}: ends after {} bytes; its header asks for {}", path, got, total));
  }
  std::byte more{};
  if (gzread(raw, &more, 1) == 1) {
    throw DataError(format("{}: holds more than the {} bytes that its header asks for", path, total));
  }
  return bytes;
}

bool file_exists(const std::string& path) {
  struct stat st {};
  return stat(path.c_str(), &st) == 0;
}

}  // namespace penstock::data
