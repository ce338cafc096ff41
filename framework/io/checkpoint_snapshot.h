// What a checkpoint will hold, copied to host memory in one go so that training can continue while
// it is written.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/io/safetensors_weights.h"

namespace penstock::io {

class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  ~Snapshot();

  i64 step = 0;
  i64 position = 0;  // samples seen
  std::string metric_name;
  std::optional<double> metric;  // of the weights in this snapshot, if they were evaluated

  void add_text(const std::string& name, std::string text);
  // Copies every tensor now, and waits for the device; the public layout is made while writing.
  // Throws StorageError when the host has no memory for the copy.
  void add_tensors(const std::string& name, std::span<const NamedTensor> tensors,
                   Metadata metadata = {});
  // Bytes that writing it takes on disk, manifest included, rounded up.
  i64 disk_bytes() const;
  i64 host_bytes() const;
  // Empty again; the host memory stays for the next one.
  void clear();

  std::size_t files() const { return files_.size(); }
  const std::string& file_name(std::size_t i) const { return files_[i].name; }
  i64 file_bytes(std::size_t i) const;  // about: header sizes are estimated
  void write_file(std::size_t i, OutputFile& out) const;

 private:
  struct Item {
    std::string name;
    DType dtype;
    Shape memory;
    Layout layout;
    i64 offset;  // in the block
    i64 bytes;
  };
  // Host memory of one file's tensors; grows, and is pinned when tensors come from a GPU.
  struct Block {
    std::unique_ptr<std::byte[]> data;
    i64 capacity = 0;
    bool pinned = false;
  };
  struct File {
    std::string name;
    std::string text;
    std::vector<Item> items;
    Metadata metadata;
    std::size_t block = 0;  // index + 1; 0 for text
  };

  Block& reserve(std::size_t index, i64 bytes, bool pin);
  static void release(Block& block);

  std::vector<File> files_;
  std::vector<Block> blocks_;
  std::size_t used_blocks_ = 0;
};

}  // namespace penstock::io
