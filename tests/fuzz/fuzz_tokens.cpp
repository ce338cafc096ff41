// Token shards: any file gives windows of its own tokens, or throws DataError; never one token past
// the end. The input's first byte is the length of a sequence, its second the vocabulary's.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "data/formats.h"
#include "framework/core/check.h"

using namespace penstock;
using namespace penstock::data;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const TokenOptions options{.sequence = 1 + input[0], .vocabulary = i64(input[1]) * 256};
  const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0 || write(fd, input + 2, size - 2) != ssize_t(size - 2)) {
    std::abort();
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  try {
    // Twice the same shard: windows cross its border.
    const auto set = open_tokens({path, path}, options);
    if (set->size() * options.sequence + 1 > 2 * i64(size / 2)) {
      std::abort();
    }
    std::vector<std::int32_t> tokens(std::size_t(options.sequence));
    std::vector<std::int32_t> targets(tokens.size());
    std::byte* rows[] = {reinterpret_cast<std::byte*>(tokens.data()),
                         reinterpret_cast<std::byte*>(targets.data())};
    for (const i64 index : {i64{0}, set->size() / 2, set->size() - 1}) {
      set->load({.index = index}, {}, rows);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool shifted = i + 1 == tokens.size() || tokens[i + 1] == targets[i];
        if (!shifted || tokens[i] < 0 || tokens[i] > 65535 ||
            (options.vocabulary > 0 && targets[i] >= options.vocabulary)) {
          std::abort();
        }
      }
    }
  } catch (const DataError&) {
  }
  close(fd);
  return 0;
}
