#include "framework/io/checkpoint_snapshot.h"

#include <algorithm>

#include "framework/core/cuda.h"
#include "framework/core/machine.h"

namespace penstock::io {
namespace {

constexpr i64 kAlignment = 64;  // of tensors inside a block
constexpr i64 kSlack = 4096;    // a file's last block on disk

i64 aligned(i64 bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Snapshot::~Snapshot() {
  for (Block& block : blocks_) {
    release(block);
  }
}

void Snapshot::release(Block& block) {
  if (block.pinned) {
    cuda::unregister_host(block.data.get());
  }
  block = {};
}

Snapshot::Block& Snapshot::reserve(std::size_t index, i64 bytes, bool pin) {
  if (blocks_.size() <= index) {
    blocks_.resize(index + 1);
  }
  Block& block = blocks_[index];
  if (block.capacity >= bytes) {
    return block;
  }
  release(block);
  // The allocation would succeed in any case; it is the touching that ends a process.
  const i64 available = machine::available_memory();
  if (bytes > available) {
    throw StorageError(format("checkpoint: the host copy needs {} ({} bytes), {} are available",
                              bytes_text(double(bytes)), bytes, bytes_text(double(available))));
  }
  block.data = std::make_unique_for_overwrite<std::byte[]>(std::size_t(bytes));
  block.capacity = bytes;
  block.pinned = pin && cuda::register_host(block.data.get(), bytes);
  return block;
}

void Snapshot::add_text(const std::string& name, std::string text) {
  files_.push_back({.name = name, .text = std::move(text), .items = {}, .metadata = {}});
}

void Snapshot::add_tensors(const std::string& name, std::span<const NamedTensor> tensors,
                           Metadata metadata) {
  File file{.name = name, .text = {}, .items = {}, .metadata = std::move(metadata)};
  i64 bytes = 0;
  bool on_gpu = false;
  for (const NamedTensor& t : tensors) {
    file.items.push_back({.name = t.name,
                          .dtype = t.tensor.dtype(),
                          .memory = t.tensor.shape(),
                          .layout = t.layout,
                          .offset = bytes,
                          .bytes = t.tensor.bytes()});
    bytes += aligned(t.tensor.bytes());
    on_gpu = on_gpu || t.tensor.device().is_cuda();
  }
  const Block& block = reserve(used_blocks_, bytes, on_gpu);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (file.items[i].bytes > 0) {
      tensors[i].tensor.store_host(block.data.get() + file.items[i].offset);
    }
  }
  file.block = ++used_blocks_;
  files_.push_back(std::move(file));
}

i64 Snapshot::file_bytes(std::size_t i) const {
  const File& file = files_[i];
  i64 bytes = i64(file.text.size());
  for (const Item& item : file.items) {
    bytes += item.bytes + 128 + i64(item.name.size());
  }
  return bytes;
}

i64 Snapshot::disk_bytes() const {
  i64 bytes = 2 * kSlack;  // folder and manifest
  for (std::size_t i = 0; i < files_.size(); ++i) {
    bytes += file_bytes(i) + kSlack;
  }
  return bytes;
}

i64 Snapshot::host_bytes() const {
  i64 bytes = 0;
  for (const Block& block : blocks_) {
    bytes += block.capacity;
  }
  return bytes;
}

void Snapshot::clear() {
  files_.clear();
  used_blocks_ = 0;
  step = 0;
  position = 0;
  metric_name.clear();
  metric.reset();
}

void Snapshot::write_file(std::size_t index, OutputFile& out) const {
  const File& file = files_[index];
  if (file.block == 0) {
    out.write(file.text);
    return;
  }
  std::vector<SafetensorsHeaderItem> items;
  items.reserve(file.items.size());
  for (const Item& item : file.items) {
    items.push_back(
        {.name = item.name, .dtype = item.dtype, .shape = file_shape(item.memory, item.layout)});
  }
  const std::byte* base = blocks_[file.block - 1].data.get();
  SafetensorsWriter writer(out, items, file.metadata);
  std::vector<std::byte> rearranged;
  for (const std::size_t i : writer.order()) {
    const Item& item = file.items[i];
    std::span<const std::byte> bytes(base + item.offset, std::size_t(item.bytes));
    if (item.layout != Layout::kSame) {
      rearranged.resize(bytes.size());
      to_file_layout(
          {.memory = item.memory, .element_bytes = size_of(item.dtype), .layout = item.layout},
          bytes.data(), rearranged.data());
      bytes = rearranged;
    }
    writer.append(bytes);
  }
  writer.finish();
}

}  // namespace penstock::io
