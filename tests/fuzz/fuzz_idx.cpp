// IDX: any two files are a data set of what they hold or throw DataError. The input's first two
// bytes say how long the labels' file is, which comes first.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/formats.h"
#include "framework/core/check.h"

using namespace penstock;
using namespace penstock::data;

namespace {

// A file in memory, with a path.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* bytes, std::size_t size) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, bytes, size) != ssize_t(size)) {
      std::abort();
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const std::size_t rest = size - 2;
  const std::size_t split = std::min<std::size_t>(rest, input[0] | (std::size_t(input[1]) << 8));
  const MemoryFile labels(input + 2, split);
  const MemoryFile images(input + 2 + split, rest - split);
  try {
    const auto set = open_idx(images.path(), labels.path(), 10);
    const auto fields = set->fields();
    std::vector<std::byte> image(std::size_t(fields[0].bytes()));
    std::int64_t label = -1;
    for (const i64 index : {i64{0}, set->size() - 1}) {
      std::byte* rows[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
      set->load({.index = index}, {}, rows);
      if (label < 0 || label >= 10) {
        std::abort();
      }
    }
  } catch (const DataError&) {
  }
  return 0;
}
