// Reading data files under caps: what the formats share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "framework/core/target.h"

namespace penstock::data {

// A regular file, open for reading at any place by any number of threads. Its bytes are read rather
// than mapped: a file that shrinks while it is used is an error then, not a signal.
class DataFile {
 public:
  // Throws DataError naming the file.
  explicit DataFile(const std::string& path);
  ~DataFile();
  DataFile(DataFile&& other) noexcept;
  DataFile& operator=(DataFile&&) = delete;
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  const std::string& path() const { return path_; }
  i64 bytes() const { return bytes_; }  // when it was opened
  // Fills `to` from `offset` on. Throws DataError naming the file where that fails or falls short.
  void read(i64 offset, std::span<std::byte> to) const;

 private:
  std::string path_;
  i64 bytes_ = 0;  // before the descriptor, whose opening sets it
  int fd_ = -1;
};

// The contents of a gzip file (or of a plain one: told by its first bytes), which must be exactly
// as long as `expected(header)` says once the first `header_bytes` are known. Memory is taken as
// bytes arrive, never because a header asks for it. Throws DataError naming the file.
std::vector<std::byte> read_inflated(const std::string& path, std::size_t header_bytes,
                                     i64 (*expected)(std::span<const std::byte> header,
                                                     const std::string& path));

bool file_exists(const std::string& path);

}  // namespace penstock::data
