// A folder of a test's own, and a few ways to look at and spoil what is in it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "framework/core/target.h"

namespace penstock::io {

class TestFolder {
 public:
  // For thousands of syncs a folder in memory, where there is one, spares the disk.
  enum class Where { kTemporary, kMemory };
  explicit TestFolder(Where where = Where::kTemporary) {
    const bool memory = where == Where::kMemory && ::access("/dev/shm", W_OK) == 0;
    std::string name =
        (memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) /
        "penstock_storage_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no temporary folder: " + name);
    }
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline std::string contents_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.flush();
  ASSERT_TRUE(out.good()) << path;
}

// The message of the error that `run` throws; a failure of the test when it throws none.
template <class E, class F>
std::string message_of(F run) {
  try {
    run();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another kind of error: " << e.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace penstock::io
