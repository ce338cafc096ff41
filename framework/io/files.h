// Files that are never lost: every write, sync and close is checked, short writes go on, and a name
// holds either the old contents or the new ones, never a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/check.h"
#include "framework/io/files_checksum.h"

namespace penstock::io {

// A system call on a path that failed.
class FileError : public StorageError {
 public:
  struct Facts {
    std::string operation;  // "write", "sync", "rename", ...
    std::string path;
    int error = 0;                    // errno
    i64 needed = 0;                   // bytes still to be written; 0 when none were asked for
    std::optional<i64> free_bytes{};  // what the file system says is left
  };
  explicit FileError(const Facts& facts);
  const Facts& facts() const { return facts_; }
  // No space, quota or file-size limit: more room would help.
  bool full() const;
  // The file or folder is not there.
  bool missing() const;

 private:
  Facts facts_;
};

// Throws FileError for `operation` on `path` with the present errno.
[[noreturn]] void throw_file_error(const char* operation, const std::string& path, i64 needed = 0);

// A name that came from a file, in quotes, printable ASCII only and at most `limit` bytes long.
std::string in_quotes(std::string_view name, std::size_t limit = 120);

// An open descriptor, closed when this goes.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  // Closes and reports what the system says; 0 or errno.
  int close();

 private:
  int fd_ = -1;
};

enum class Links { kFollow, kRefuse };

// A regular file opened for reading; anything else (a FIFO, a folder) is a StorageError, and
// opening it never blocks. Reads name both sizes when the file is shorter than asked for.
class InputFile {
 public:
  explicit InputFile(std::string path, Links links = Links::kFollow);
  const std::string& path() const { return path_; }
  i64 size() const { return size_; }  // when it was opened
  void read(i64 offset, std::span<std::byte> to) const;

 private:
  std::string path_;
  Descriptor fd_;
  i64 size_ = 0;
};

// The whole file as text; StorageError when it is larger than `max_bytes`.
std::string read_text(const std::string& path, i64 max_bytes, Links links = Links::kFollow);
// XXH3-64 of the whole file.
std::uint64_t file_checksum(const std::string& path, Links links = Links::kFollow);

// A new file, written from front to back. It is removed again unless finish() succeeded.
class OutputFile {
 public:
  // Creates `path`, which must not exist; `expected` is the size it will have, for messages.
  explicit OutputFile(std::string path, i64 expected = 0);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  const std::string& path() const { return path_; }
  i64 bytes() const { return bytes_; }
  std::uint64_t checksum() const { return checksum_.digest(); }

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Makes the contents durable and closes; the folder's entry is not synced.
  void finish();

 private:
  std::string path_;
  Descriptor fd_;
  Checksum checksum_;
  i64 expected_ = 0;
  i64 bytes_ = 0;
};

// A file that takes its name complete or not at all: a temporary beside it, synced, renamed, and
// the folder synced. The old file of that name stays until then.
class ReplacedFile {
 public:
  explicit ReplacedFile(const std::string& path, i64 expected = 0);
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;
  ~ReplacedFile();
  OutputFile& out() { return out_; }
  void commit();

 private:
  std::string path_;
  OutputFile out_;
  bool pending_ = false;  // the temporary is complete and has not got its name yet
};
void replace_file(const std::string& path, std::string_view contents);
// Removes what replacements in `folder` left when their process was killed. For a folder that no
// other process writes to.
void remove_unfinished(const std::string& folder);

// Makes one folder; its parent must exist. False when there was one already.
bool make_folder(const std::string& path);
void rename_path(const std::string& from, const std::string& to);
// Makes the entries of a folder durable (creations, renames, removals inside it).
void sync_folder(const std::string& path);
// Removes the plain files of a folder and the folder itself. Throws FileError and leaves the rest
// where it finds anything that cannot be one of ours: a folder, a link, a device.
void remove_flat_folder(const std::string& path);
// Names in a folder, sorted, without "." and "..".
std::vector<std::string> list_folder(const std::string& path);
bool is_folder(const std::string& path, Links links = Links::kRefuse);

// The folder part of a path: "a/b" -> "a", "b" -> ".".
std::string parent_of(const std::string& path);
// Eight hexadecimal digits that no other process draws.
std::string random_suffix();

// What an ordinary user may still write there; none when the file system does not say.
std::optional<i64> free_bytes(const std::string& path);
// Throws FileError (no space) when `needed` bytes certainly do not fit.
void require_space(const std::string& folder, i64 needed);
// Shows that writing, syncing and renaming work in `folder`, with a file called `name` that is gone
// afterwards. Throws FileError naming what does not work.
void probe_folder(const std::string& folder, const std::string& name);
// "nfs", "cifs", "fuse", ...: a file system whose promises come from a server; empty for others.
std::string network_file_system(const std::string& path);

}  // namespace penstock::io
