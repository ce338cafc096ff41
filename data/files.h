// Reading data files whole, under caps: what the formats share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "framework/core/target.h"

namespace penstock::data {

// A regular file, mapped for reading. Throws DataError naming it.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, std::size_t(size_)}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  i64 size_ = 0;
};

// The contents of a gzip file (or of a plain one: told by its first bytes), which must be exactly
// what `expected(header)` says once the first `header_bytes` are known: a stream that inflates to
// more is cut off with an error, never into memory.
std::vector<std::byte> read_inflated(const std::string& path, std::size_t header_bytes,
                                     i64 (*expected)(std::span<const std::byte> header,
                                                     const std::string& path));

bool file_exists(const std::string& path);

}  // namespace penstock::data
