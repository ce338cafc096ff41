// CIFAR: any file is a set of whole records with labels in range or throws DataError. The input's
// first byte says which of the two layouts it is.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "data/formats.h"
#include "framework/core/check.h"

using namespace penstock;
using namespace penstock::data;

namespace {

// One folder for the process, in memory where the system has such a place.
const std::string& folder() {
  static const std::string path = [] {
    std::string name = access("/dev/shm", W_OK) == 0 ? "/dev/shm/penstock_fuzz_XXXXXX"
                                                     : "/tmp/penstock_fuzz_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      std::abort();
    }
    return name;
  }();
  static const struct Remover {
    ~Remover() {
      for (const char* file : {"/test_batch.bin", "/test.bin"}) {
        (void)std::remove((path + file).c_str());
      }
      (void)std::remove(path.c_str());
    }
    std::string path;
  } remover{path};
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  if (size < 1) {
    return 0;
  }
  const int classes = input[0] % 2 == 0 ? 10 : 100;
  const std::string path = folder() + (classes == 10 ? "/test_batch.bin" : "/test.bin");
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(input + 1), std::streamsize(size - 1));
  const std::size_t record = classes == 10 ? 3073 : 3074;
  try {
    const auto set = open_cifar(folder(), false, classes);
    if (set->size() != i64((size - 1) / record) || (size - 1) % record != 0) {
      std::abort();
    }
    std::vector<std::byte> image(3072);
    std::int64_t label = -1;
    std::byte* rows[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
    set->load({.index = set->size() - 1}, {}, rows);
    if (label < 0 || label >= classes || image[3] != std::byte(input[size - 3072 + 1])) {
      std::abort();
    }
  } catch (const DataError&) {
  }
  return 0;
}
