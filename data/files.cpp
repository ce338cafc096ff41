#include "data/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "framework/core/check.h"
#include "framework/core/machine.h"

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

// A stream of zlib's, plain or compressed.
class Inflated {
 public:
  explicit Inflated(const std::string& path) : path_(path) {
    const int fd = open_regular(path, size_);
    file_.reset(gzdopen(fd, "rb"));
    if (file_ == nullptr) {
      close(fd);
      throw DataError(format("{}: cannot be read", path));
    }
    gzbuffer(file_.get(), 1 << 18);
  }

  // Up to `to.size()` bytes; fewer only where the stream ends.
  std::size_t read(std::span<std::byte> to) {
    std::size_t done = 0;
    while (done < to.size()) {
      const auto piece = unsigned(std::min<std::size_t>(to.size() - done, std::size_t{1} << 30));
      const int n = gzread(file_.get(), to.data() + done, piece);
      int code = Z_OK;
      const char* why = gzerror(file_.get(), &code);
      // A compressed stream that is cut off ends like a whole one, but for this.
      if (n < 0 || code == Z_BUF_ERROR) {
        throw DataError(
            format("{}: damaged: {}", path_, code == Z_ERRNO ? std::strerror(errno) : why));
      }
      if (n == 0) {
        break;
      }
      done += std::size_t(n);
    }
    return done;
  }

  // The most bytes that may come: a gzip stream inflates at most 1,032 times.
  i64 most() const { return gzdirect(file_.get()) != 0 ? size_ : size_ * 1032 + 1024; }

 private:
  std::string path_;
  i64 size_ = 0;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_{nullptr, gzclose};
};

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path), fd_(open_regular(path, bytes_)) {}

DataFile::DataFile(DataFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(other.bytes_), fd_(std::exchange(other.fd_, -1)) {}

DataFile::~DataFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

void DataFile::read(i64 offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = pread(fd_, to.data(), to.size(), offset);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      throw DataError(format("{}: reading {} bytes at {} failed: {}", path_, to.size(), offset,
                             std::strerror(errno)));
    }
    if (n == 0) {
      throw DataError(
          format("{}: ends before byte {}; it had {} bytes when it was opened and has shrunk",
                 path_, offset + i64(to.size()), bytes_));
    }
    offset += n;
    to = to.subspan(std::size_t(n));
  }
}

std::vector<std::byte> read_inflated(const std::string& path, std::size_t header_bytes,
                                     i64 (*expected)(std::span<const std::byte>,
                                                     const std::string&)) {
  Inflated file(path);
  std::vector<std::byte> bytes(header_bytes);
  if (file.read(bytes) < header_bytes) {
    throw DataError(format("{}: shorter than its header of {} bytes", path, header_bytes));
  }
  const i64 total = expected(bytes, path);
  if (total > file.most()) {
    throw DataError(format("{}: its header asks for {} bytes, and the file holds at most {}", path,
                           total, file.most()));
  }
  if (total > machine::available_memory()) {
    throw DataError(format("{}: its header asks for {}, and {} of memory are free", path,
                           bytes_text(double(total)),
                           bytes_text(double(machine::available_memory()))));
  }
  // A header may lie within those bounds too: twice what has come is asked for, not all.
  while (i64(bytes.size()) < total) {
    const std::size_t have = bytes.size();
    bytes.resize(std::min(std::size_t(total), std::max(2 * have, std::size_t{1} << 20)));
    const std::size_t got = have + file.read(std::span(bytes).subspan(have));
    if (got < bytes.size()) {
      throw DataError(format("{}: ends after {} bytes; its header asks for {}", path, got, total));
    }
  }
  // Also where a checksum behind the data is compared.
  std::byte more{};
  if (file.read({&more, 1}) == 1) {
    throw DataError(
        format("{}: holds more than the {} bytes that its header asks for", path, total));
  }
  return bytes;
}

bool file_exists(const std::string& path) {
  struct stat st {};
  return stat(path.c_str(), &st) == 0;
}

}  // namespace penstock::data
