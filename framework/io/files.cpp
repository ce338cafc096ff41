#include "framework/io/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

namespace penstock::io {
namespace {

// Small enough that hashing and writing a piece share the cache, large enough that calls are free.
constexpr std::size_t kPiece = std::size_t{4} << 20;

// Between the final name and the suffix of a file that is still being written.
constexpr std::string_view kReplacing = ".penstock-";

std::string describe(const FileError::Facts& facts) {
  std::string text = format("{} {}: {}", facts.operation, facts.path,
                            std::generic_category().message(facts.error));
  if (facts.needed > 0) {
    text += format("; {} ({} bytes) needed", bytes_text(double(facts.needed)), facts.needed);
  }
  if (facts.free_bytes) {
    text += format("{} {} ({} bytes) free", facts.needed > 0 ? "," : ";",
                   bytes_text(double(*facts.free_bytes)), *facts.free_bytes);
  }
  switch (facts.error) {
    case ENOSPC: return text + "; free some space on this file system";
    case EDQUOT: return text + "; the quota of this user or project is used up";
    case EFBIG: return text + "; a file-size limit (ulimit -f) is in force";
    case EROFS: return text + "; the file system is mounted read-only";
    case EACCES:
    case EPERM: return text + "; check the owner and the permissions of the folder";
    default: return text;
  }
}

bool is_full(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

// The folder whose file system answers for `path`.
std::string existing_parent(std::string path) {
  while (::access(path.c_str(), F_OK) != 0 && path != "." && path != "/") {
    path = parent_of(path);
  }
  return path;
}

[[noreturn]] void fail_with(int error, const char* operation, const std::string& path,
                            i64 needed = 0) {
  FileError::Facts facts{
      .operation = operation, .path = path, .error = error, .needed = needed, .free_bytes = {}};
  if (is_full(error)) {
    facts.free_bytes = free_bytes(path);
  }
  throw FileError(facts);
}

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

int sync_retrying(int fd) {
  int result = -1;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

FileError::FileError(const Facts& facts) : StorageError(describe(facts)), facts_(facts) {}

bool FileError::full() const {
  return is_full(facts_.error);
}

bool FileError::missing() const {
  return facts_.error == ENOENT || facts_.error == ENOTDIR;
}

void throw_file_error(const char* operation, const std::string& path, i64 needed) {
  fail_with(errno, operation, path, needed);
}

std::string in_quotes(std::string_view name, std::size_t limit) {
  std::string out = "\"";
  for (const char c : name.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F || c == '"' || c == '\\') {
      out += "\\x";
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
  if (name.size() > limit) {
    out += format("... ({} bytes)", name.size());
  }
  return out;
}

// ---- descriptors

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

Descriptor::~Descriptor() {
  close();
}

int Descriptor::release() {
  return std::exchange(fd_, -1);
}

int Descriptor::close() {
  if (fd_ < 0) {
    return 0;
  }
  // Linux has closed the descriptor even where it says EINTR: never a second try.
  return ::close(std::exchange(fd_, -1)) == 0 || errno == EINTR ? 0 : errno;
}

// ---- reading

InputFile::InputFile(std::string path, Links links) : path_(std::move(path)) {
  const int nofollow = links == Links::kRefuse ? O_NOFOLLOW : 0;
  // Opening a FIFO waits for a writer unless it is non-blocking; for regular files that flag is
  // idle.
  fd_ = Descriptor(open_retrying(path_.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | nofollow));
  if (!fd_) {
    throw_file_error("open", path_);
  }
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    throw_file_error("look at", path_);
  }
  if (!S_ISREG(status.st_mode)) {
    throw StorageError(format("open {}: expected a regular file, found {}", path_,
                              S_ISDIR(status.st_mode) ? "a folder" : "something else"));
  }
  size_ = status.st_size;
}

void InputFile::read(i64 offset, std::span<std::byte> to) const {
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got =
        ::pread(fd_.get(), to.data() + done, to.size() - done, off_t(offset + i64(done)));
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw_file_error("read", path_);
    }
    if (got == 0) {
      throw StorageError(
          format("read {}: expected {} bytes at offset {}, the file ends after {} of "
                 "them (it had {} bytes when it was opened): it was cut short",
                 path_, to.size(), offset, done, size_));
    }
    done += std::size_t(got);
  }
}

std::string read_text(const std::string& path, i64 max_bytes, Links links) {
  const InputFile file(path, links);
  if (file.size() > max_bytes) {
    throw StorageError(
        format("read {}: {} bytes, at most {} are expected here", path, file.size(), max_bytes));
  }
  std::string text(std::size_t(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::uint64_t file_checksum(const std::string& path, Links links) {
  const InputFile file(path, links);
  std::vector<std::byte> piece(std::min<std::size_t>(std::size_t(file.size()), kPiece));
  Checksum checksum;
  for (i64 at = 0; at < file.size();) {
    const auto part =
        std::span(piece).first(std::min<std::size_t>(piece.size(), std::size_t(file.size() - at)));
    file.read(at, part);
    checksum.update(part);
    at += i64(part.size());
  }
  return checksum.digest();
}

// ---- writing

OutputFile::OutputFile(std::string path, i64 expected)
    : path_(std::move(path)), expected_(expected) {
  fd_ = Descriptor(open_retrying(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666));
  if (!fd_) {
    throw_file_error("create", path_, expected);
  }
}

OutputFile::~OutputFile() {
  if (fd_) {
    fd_.close();
    ::unlink(path_.c_str());
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    const ssize_t written = ::write(fd_.get(), piece.data(), piece.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw_file_error("write", path_, std::max(expected_ - bytes_, i64(bytes.size())));
    }
    if (written == 0) {
      fail_with(EIO, "write", path_, i64(bytes.size()));
    }
    checksum_.update(bytes.first(std::size_t(written)));
    bytes_ += written;
    bytes = bytes.subspan(std::size_t(written));
  }
}

void OutputFile::finish() {
  if (sync_retrying(fd_.get()) != 0) {
    throw_file_error("sync", path_);
  }
  // A failed close may be a lost write (a quota on a network file system): the name goes too.
  if (const int error = fd_.close(); error != 0) {
    ::unlink(path_.c_str());
    fail_with(error, "close", path_);
  }
}

ReplacedFile::ReplacedFile(const std::string& path, i64 expected)
    : path_(path),
      out_(format("{}/.{}{}{}", parent_of(path), path.substr(path.rfind('/') + 1), kReplacing,
                  random_suffix()),
           expected) {}

ReplacedFile::~ReplacedFile() {
  if (pending_) {
    ::unlink(out_.path().c_str());
  }
}

void ReplacedFile::commit() {
  out_.finish();
  pending_ = true;
  rename_path(out_.path(), path_);
  pending_ = false;
  sync_folder(parent_of(path_));
}

void replace_file(const std::string& path, std::string_view contents) {
  ReplacedFile file(path, i64(contents.size()));
  file.out().write(contents);
  file.commit();
}

void remove_unfinished(const std::string& folder) {
  for (const std::string& name : list_folder(folder)) {
    const std::size_t suffix = name.size() - std::min<std::size_t>(name.size(), 8);
    const bool ours = name.starts_with('.') &&
                      std::string_view(name).substr(0, suffix).ends_with(kReplacing) &&
                      name.find_first_not_of("0123456789abcdef", suffix) == std::string::npos;
    if (ours && !is_folder(folder + "/" + name)) {
      ::unlink((folder + "/" + name).c_str());
    }
  }
}

// ---- folders

bool make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) {
    return true;
  }
  if (errno == EEXIST && is_folder(path, Links::kFollow)) {
    return false;
  }
  throw_file_error("make folder", path);
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    fail_with(error, "rename", format("{} to {}", from, to));
  }
}

void sync_folder(const std::string& path) {
  Descriptor fd(open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY));
  if (!fd) {
    throw_file_error("open folder", path);
  }
  // Some network file systems have no sync of folders; their server orders the entries itself.
  if (sync_retrying(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    throw_file_error("sync folder", path);
  }
}

void remove_flat_folder(const std::string& path) {
  const Descriptor folder(open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (!folder) {
    throw_file_error("open folder", path);
  }
  const std::vector<std::string> names = list_folder(path);
  // First look, then act: a folder that holds something strange keeps all of its contents.
  for (const std::string& name : names) {
    struct stat status {};
    if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      throw_file_error("look at", path + "/" + name);
    }
    if (!S_ISREG(status.st_mode)) {
      fail_with(ENOTEMPTY, "remove folder", path);
    }
  }
  for (const std::string& name : names) {
    if (::unlinkat(folder.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
      throw_file_error("remove", path + "/" + name);
    }
  }
  if (::rmdir(path.c_str()) != 0) {
    throw_file_error("remove folder", path);
  }
}

std::vector<std::string> list_folder(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (!folder) {
    throw_file_error("list folder", path);
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr) {
      if (errno != 0) {
        throw_file_error("list folder", path);
      }
      break;
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      names.emplace_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_folder(const std::string& path, Links links) {
  struct stat status {};
  const int flags = links == Links::kRefuse ? AT_SYMLINK_NOFOLLOW : 0;
  return ::fstatat(AT_FDCWD, path.c_str(), &status, flags) == 0 && S_ISDIR(status.st_mode);
}

std::string parent_of(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = path.rfind('/', end);
  if (end == std::string::npos || slash == std::string::npos) {
    return end == std::string::npos && !path.empty() ? "/" : ".";
  }
  const std::size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

std::string random_suffix() {
  std::uint64_t word = 0;
  if (::getrandom(&word, sizeof(word), GRND_NONBLOCK) != ssize_t(sizeof(word))) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    word = std::uint64_t(now) * 0x9E3779B97F4A7C15ull ^ (std::uint64_t(::getpid()) << 16);
  }
  return checksum_text(word).substr(0, 8);
}

// ---- file systems

std::optional<i64> free_bytes(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(existing_parent(path).c_str(), &status) != 0 || status.f_blocks == 0) {
    return std::nullopt;
  }
  i64 bytes = 0;
  if (__builtin_mul_overflow(i64(status.f_bavail), i64(status.f_frsize), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

void require_space(const std::string& folder, i64 needed) {
  const std::optional<i64> free = free_bytes(folder);
  if (free && *free < needed) {
    fail_with(ENOSPC, "write into", folder, needed);
  }
}

void probe_folder(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name;
  ReplacedFile file(path);
  file.out().write("penstock");
  file.commit();
  if (::unlink(path.c_str()) != 0) {
    throw_file_error("remove", path);
  }
}

std::string network_file_system(const std::string& path) {
  struct Known {
    std::uint32_t magic;
    const char* name;
  };
  // statfs(2), "Filesystem types".
  static constexpr std::array<Known, 9> kKnown = {{{0x6969, "nfs"},
                                                   {0x517B, "smb"},
                                                   {0xFF534D42, "cifs"},
                                                   {0xFE534D42, "smb2"},
                                                   {0x65735546, "fuse"},
                                                   {0x01021997, "9p"},
                                                   {0x0BD00BD0, "lustre"},
                                                   {0x47504653, "gpfs"},
                                                   {0x00C36400, "ceph"}}};
  struct statfs status {};
  if (::statfs(existing_parent(path).c_str(), &status) != 0) {
    return "";
  }
  for (const Known& known : kKnown) {
    if (std::uint32_t(status.f_type) == known.magic) {
      return known.name;
    }
  }
  return "";
}

}  // namespace penstock::io
