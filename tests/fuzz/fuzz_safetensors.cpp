// safetensors: any bytes either give tensors that cover the file exactly or throw DataError. What
// is accepted and written again reads back the same.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/io/safetensors.h"

using namespace penstock;
using namespace penstock::io;

namespace {

void expect(bool condition) {
  if (!condition) {
    std::abort();
  }
}

// A file in memory that has a path.
struct MemoryFile {
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  void put(const std::uint8_t* data, std::size_t size) const {
    expect(::ftruncate(fd, 0) == 0);
    expect(::pwrite(fd, data, size, 0) == ssize_t(size));
  }
};

// Sets the header's length to what the bytes could hold, so that what lies behind that check is
// reached: the first byte says how much data follows the header.
std::vector<std::uint8_t> sealed(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> file(data + 1, data + size);
  const std::size_t tail = data[0] & 0x7F;
  if ((data[0] & 0x80) == 0 && file.size() >= 8 + tail) {
    const std::uint64_t length = file.size() - 8 - tail;
    std::memcpy(file.data(), &length, 8);
  }
  return file;
}

std::vector<std::byte> bytes_of(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(std::size_t(entry.bytes));
  file.read_bytes(entry, 0, bytes);
  return bytes;
}

void write_again(const SafetensorsFile& file) {
  static const std::string path =
      (std::filesystem::temp_directory_path() / ("fuzz_safetensors_" + std::to_string(::getpid())))
          .string();
  std::vector<HostTensor> tensors;
  std::vector<std::vector<std::byte>> values;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!dtype_of_stored(entry.type) || entry.name.empty()) {
      return;
    }
    values.push_back(bytes_of(file, entry));
    tensors.push_back({.name = entry.name,
                       .dtype = *dtype_of_stored(entry.type),
                       .shape = entry.shape,
                       .data = values.back().data()});
  }
  OutputFile out(path);
  write_safetensors(out, tensors, file.metadata());
  const SafetensorsFile again(path);
  expect(again.entries().size() == file.entries().size());
  expect(again.metadata() == file.metadata());
  for (const SafetensorsEntry& entry : file.entries()) {
    const SafetensorsEntry* copy = again.find(entry.name);
    expect(copy != nullptr && copy->shape == entry.shape && copy->type == entry.type);
    expect(bytes_of(again, *copy) == bytes_of(file, entry));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) {
    return 0;
  }
  static const MemoryFile memory;
  const std::vector<std::uint8_t> bytes = sealed(data, size);
  memory.put(bytes.data(), bytes.size());
  try {
    const SafetensorsFile file(memory.path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    i64 end = 8 + i64(length);
    for (const SafetensorsEntry& entry : file.entries()) {
      expect(entry.offset == end && entry.bytes >= 0);
      expect(entry.bytes == entry.shape.numel() * size_of(entry.type));
      expect(file.find(entry.name) == &entry);
      end += entry.bytes;
    }
    expect(end == i64(bytes.size()));
    write_again(file);
  } catch (const DataError&) {
  }
  return 0;
}
