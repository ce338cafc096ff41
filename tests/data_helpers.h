// A folder of a test's own, files in it, and samples out of a data set.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "framework/core/check.h"

namespace penstock::data {

class DataFolder {
 public:
  DataFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock_data_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("no temporary folder: " + name);
    }
    path_ = name;
  }
  ~DataFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and gives its path.
  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

inline std::string gzipped(const std::string& bytes) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(bytes.size() + 1024, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = uInt(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = uInt(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

// Every field of one sample.
using Sample = std::vector<std::vector<std::byte>>;

inline Sample sample_of(const Dataset& set, i64 index, i64 epoch = 0) {
  Sample fields;
  std::vector<std::byte*> pointers;
  for (const Field& f : set.fields()) {
    fields.emplace_back(std::size_t(f.bytes()), std::byte{0xA5});
  }
  for (auto& f : fields) {
    pointers.push_back(f.data());
  }
  const SampleKey key{.index = index, .epoch = epoch, .seed = 3};
  FetchBuffer raw;
  if (set.needs_fetch()) {
    set.fetch(key, raw);
  }
  set.load(key, raw, pointers);
  return fields;
}

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// The message of the error that `run` throws; a failure when it throws none, or another.
template <class E, class F>
std::string error_of(F run) {
  try {
    run();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another error: " << e.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_mentions(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" in: " << message;
}

}  // namespace penstock::data
