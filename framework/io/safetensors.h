// Reading and writing safetensors files, strictly: an 8-byte header length, a JSON header, and the
// tensors' bytes, which cover the rest of the file without a hole or an overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/core/dtype.h"
#include "framework/core/shape.h"
#include "framework/io/files.h"

namespace penstock::io {

// Element types that the format knows. Those without a DType can be validated, not read.
enum class StoredType : std::uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};
// "F32", as the header spells it.
const char* name_of(StoredType type);
i64 size_of(StoredType type);
std::optional<DType> dtype_of_stored(StoredType type);
StoredType stored_type_of(DType dtype);

using Metadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsLimits {
  static constexpr i64 kHeaderBytes = 100'000'000;  // the format's own
  static constexpr i64 kTensors = 65'536;
  static constexpr i64 kNameBytes = 1'024;
  static constexpr i64 kStringBytes = i64{4} << 20;  // a metadata value
  static constexpr i64 kMetadataEntries = 4'096;
};

struct SafetensorsEntry {
  std::string name;
  StoredType type = StoredType::kF32;
  Shape shape;
  i64 offset = 0;  // of its first byte in the file
  i64 bytes = 0;
};

// How many elements changed their type while they were read, and how many of them became infinite.
struct Conversion {
  i64 elements = 0;
  i64 overflowed = 0;
};

// An open file whose header has been checked against every rule and against the file's size. Throws
// DataError naming file and tensor. Nothing is mapped: a file that shrinks later is an error of
// read().
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path, Links links = Links::kFollow);

  const std::string& path() const { return file_.path(); }
  // In the order of their bytes.
  std::span<const SafetensorsEntry> entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }
  // The metadata value under `key`; empty when there is none.
  std::string_view metadata(std::string_view key) const;

  // The entry's bytes from byte `begin` of it, as they are.
  void read_bytes(const SafetensorsEntry& entry, i64 begin, std::span<std::byte> to) const;
  // `count` elements from element `begin`, as `dtype`. Floats convert to floats; any other change
  // of type is a DataError.
  Conversion read(const SafetensorsEntry& entry, i64 begin, i64 count, DType dtype, void* to) const;

 private:
  InputFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<std::uint32_t> by_name_;
  Metadata metadata_;
};

// One tensor of a file to be written; `shape` is the file's.
struct SafetensorsHeaderItem {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// Writes header and tensors through an OutputFile, front to back. Tensors are laid out by falling
// element size, so that each is aligned; order() says in which order their bytes are wanted.
class SafetensorsWriter {
 public:
  // Writes the header. Throws Error for names that are not unique, not UTF-8, or too long.
  SafetensorsWriter(OutputFile& out, std::span<const SafetensorsHeaderItem> items,
                    const Metadata& metadata = {});
  // Indices into `items`.
  std::span<const std::size_t> order() const { return order_; }
  // The next bytes of the tensors, in order().
  void append(std::span<const std::byte> bytes);
  // Checks that every tensor was given in full.
  void finish() const;
  // Bytes of the whole file.
  i64 file_bytes() const { return header_bytes_ + tensor_bytes_; }

 private:
  OutputFile& out_;
  std::vector<std::size_t> order_;
  i64 header_bytes_ = 0;
  i64 tensor_bytes_ = 0;
  i64 written_ = 0;
};

// The same in one go, for tensors in host memory.
struct HostTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  const void* data = nullptr;
};
void write_safetensors(OutputFile& out, std::span<const HostTensor> tensors,
                       const Metadata& metadata = {});

}  // namespace penstock::io
