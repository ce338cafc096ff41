#include "data/image/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "data/image/name.h"
#include "framework/core/check.h"

namespace penstock::data {
namespace {

using image::quoted_name;

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      // Not blocking: opening a named pipe that nobody writes to would never return.
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
    if (fd_ < 0) {
      throw DataError(format("{}: cannot be opened: {}", quoted_name(path), std::strerror(errno)));
    }
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void FileReader::read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const {
  const Descriptor file(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw DataError(format("{}: cannot be examined: {}", quoted_name(path), std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw DataError(format("{}: is not a regular file", quoted_name(path)));
  }
  const i64 length = status.st_size;
  const i64 wanted = size == kToEnd ? std::max<i64>(0, length - offset) : size;
  if (offset < 0 || wanted < 0 || offset > length || wanted > length - offset) {
    throw DataError(format("{}: holds {} bytes, but {} at offset {} were expected; is it cut?",
                           quoted_name(path), length, wanted, offset));
  }
  if (wanted > max_bytes_) {
    throw DataError(format("{}: {} in one piece exceed the limit of {}", quoted_name(path),
                           bytes_text(double(wanted)), bytes_text(double(max_bytes_))));
  }
  buffer.resize(std::size_t(wanted));
  for (i64 done = 0; done < wanted;) {
    const ssize_t count =
        ::pread(file.get(), buffer.data() + done, std::size_t(wanted - done), offset + done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw DataError(format("{}: read failed: {}", quoted_name(path), std::strerror(errno)));
    }
    if (count == 0) {
      throw DataError(format("{}: became shorter while it was read: {} of {} bytes",
                             quoted_name(path), done, wanted));
    }
    done += count;
  }
}

ThrottleModel::ThrottleModel(const ThrottleOptions& options)
    : options_(options), slot_free_(std::size_t(std::max(0, options.concurrency)), -1e300) {}

double ThrottleModel::finish(double now, i64 bytes) {
  double* slot = nullptr;
  double start = now;
  if (!slot_free_.empty()) {
    slot = &*std::min_element(slot_free_.begin(), slot_free_.end());
    start = std::max(now, *slot);
  }
  double done = start + options_.latency_seconds;
  if (options_.bytes_per_second > 0) {
    // A bucket of `burst` tokens is a pipe that may run ahead by the time they take.
    const double ahead = options_.burst_bytes / options_.bytes_per_second;
    pipe_free_ = std::max(pipe_free_, start - ahead) + double(bytes) / options_.bytes_per_second;
    done = std::max(done, pipe_free_ + options_.latency_seconds);
  }
  if (slot != nullptr) {
    *slot = done;
  }
  return done;
}

ThrottledReader::ThrottledReader(std::shared_ptr<const Reader> inner,
                                 const ThrottleOptions& options)
    : inner_(std::move(inner)), model_(options) {}

void ThrottledReader::read(const std::string& path, i64 offset, i64 size,
                           FetchBuffer& buffer) const {
  const double begin = seconds_now();
  inner_->read(path, offset, size, buffer);
  double done = 0;
  {
    const std::lock_guard lock(mutex_);
    done = model_.finish(begin, i64(buffer.size()));
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, done - seconds_now())));
}

bool FailingReader::chooses(std::string_view path) const {
  if (path.find(options_.match) == std::string_view::npos) {
    return false;
  }
  std::uint64_t hash = 0xCBF29CE484222325u ^ options_.seed;  // FNV-1a
  for (const char c : path) {
    hash = (hash ^ std::uint8_t(c)) * 0x100000001B3u;
  }
  hash ^= hash >> 32;
  hash *= 0x9E3779B97F4A7C15u;  // FNV leaves the upper bits poor
  return double(hash >> 11) * 0x1p-53 < options_.probability;
}

void FailingReader::read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const {
  if (chooses(path)) {
    throw DataError(format("{}: read failed: injected failure", quoted_name(path)));
  }
  inner_->read(path, offset, size, buffer);
}

void HungReader::read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const {
  if (path.find(match_) != std::string::npos) {
    std::unique_lock lock(mutex_);
    ++waiting_;
    released_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  inner_->read(path, offset, size, buffer);
}

void HungReader::release() {
  const std::lock_guard lock(mutex_);
  open_ = true;
  released_.notify_all();
}

int HungReader::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_;
}

std::shared_ptr<const Reader> make_reader(const ReaderOptions& options) {
  std::shared_ptr<const Reader> reader = std::make_shared<FileReader>(options.max_bytes);
  if (options.throttle.any()) {
    reader = std::make_shared<ThrottledReader>(std::move(reader), options.throttle);
  }
  if (options.failure.any()) {
    reader = std::make_shared<FailingReader>(std::move(reader), options.failure);
  }
  if (!options.hang_on.empty()) {
    reader = std::make_shared<HungReader>(std::move(reader), options.hang_on);
  }
  return reader;
}

}  // namespace penstock::data
