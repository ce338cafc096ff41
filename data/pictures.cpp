// Labelled pictures in single files: IDX and CIFAR.
#include <cstring>

#include "data/files.h"
#include "data/formats.h"
#include "data/memory_set.h"
#include "framework/core/check.h"

namespace penstock::data {
namespace {

constexpr i64 kMaxSamples = i64{1} << 31;
constexpr i64 kMaxSide = 16384;

std::uint32_t big_endian(std::span<const std::byte> b, std::size_t at) {
  return (std::uint32_t(b[at]) << 24) | (std::uint32_t(b[at + 1]) << 16) |
         (std::uint32_t(b[at + 2]) << 8) | std::uint32_t(b[at + 3]);
}

// Two zeros, the type of an element (8: u8), the number of dimensions.
void check_magic(std::span<const std::byte> header, std::uint32_t magic, const char* what,
                 const std::string& path) {
  const std::uint32_t found = big_endian(header, 0);
  if (found != magic) {
    throw DataError(format(
        "{}: not an IDX file of {}; expected magic {}, found {}{}", path, what, magic, found,
        (found >> 16) == 0 && (found & 0xFFFFU) >> 8 != 8 ? ": its elements are not bytes" : ""));
  }
}

i64 idx_images_bytes(std::span<const std::byte> header, const std::string& path) {
  check_magic(header, 0x00000803, "images", path);
  const i64 n = big_endian(header, 4);
  const i64 h = big_endian(header, 8);
  const i64 w = big_endian(header, 12);
  if (n < 1 || n > kMaxSamples || h < 1 || h > kMaxSide || w < 1 || w > kMaxSide) {
    throw DataError(
        format("{}: {} images of {} x {} pixels; expected at least one, of 1 to {} pixels "
               "a side",
               path, n, h, w, kMaxSide));
  }
  return 16 + n * h * w;
}

i64 idx_labels_bytes(std::span<const std::byte> header, const std::string& path) {
  check_magic(header, 0x00000801, "labels", path);
  return 8 + i64(big_endian(header, 4));
}

// Appends a label, which becomes i64.
void add_label(std::vector<std::byte>& column, std::byte byte, i64 classes,
               const std::string& path) {
  const auto label = i64(byte);
  const std::size_t at = column.size();
  if (label >= classes) {
    throw DataError(
        format("{}: label {} of sample {}; expected 0 to {}", path, label, at / 8, classes - 1));
  }
  column.resize(at + 8);
  std::memcpy(column.data() + at, &label, 8);
}

std::shared_ptr<const Dataset> pictures(const std::string& name, const Shape& shape,
                                        std::vector<std::byte> pixels,
                                        std::vector<std::byte> labels) {
  std::vector<MemorySet::Column> columns;
  columns.push_back(
      {.field = {.name = "image", .dtype = DType::u8, .shape = shape}, .rows = std::move(pixels)});
  columns.push_back(
      {.field = {.name = "label", .dtype = DType::i64, .shape = {}}, .rows = std::move(labels)});
  return std::make_shared<MemorySet>(name, std::move(columns));
}

// The first of the usual spellings that exists; the last when none does.
std::string find_idx(const std::string& folder, const std::string& name, const char* rank) {
  std::string path;
  for (const char* dot : {"-", "."}) {
    for (const char* end : {"", ".gz"}) {
      path = format("{}/{}{}{}-ubyte{}", folder, name, dot, rank, end);
      if (file_exists(path)) {
        return path;
      }
    }
  }
  return folder + "/" + name + "-" + rank + "-ubyte";
}

}  // namespace

std::shared_ptr<const Dataset> open_idx(const std::string& images, const std::string& labels,
                                        i64 classes) {
  // Labels first: they are small.
  const std::vector<std::byte> label_file = read_inflated(labels, 8, idx_labels_bytes);
  std::vector<std::byte> pixels = read_inflated(images, 16, idx_images_bytes);
  const i64 count = big_endian(pixels, 4);
  if (i64(label_file.size()) - 8 != count) {
    throw DataError(format("{}: {} images, and {} holds {} labels; expected as many of each",
                           images, count, labels, label_file.size() - 8));
  }
  std::vector<std::byte> column;
  column.reserve((label_file.size() - 8) * 8);
  for (std::size_t i = 8; i < label_file.size(); ++i) {
    add_label(column, label_file[i], classes, labels);
  }
  const Shape shape = {i64(big_endian(pixels, 8)), i64(big_endian(pixels, 12)), 1};
  pixels.erase(pixels.begin(), pixels.begin() + 16);
  return pictures(images, shape, std::move(pixels), std::move(column));
}

std::shared_ptr<const Dataset> open_mnist(const std::string& folder, bool train) {
  const std::string prefix = train ? "train" : "t10k";
  const std::string images = find_idx(folder, prefix + "-images", "idx3");
  if (!file_exists(images)) {
    throw DataError(
        format("data.dir: {} has no {}-images-idx3-ubyte(.gz); it needs the four IDX "
               "files, as Debian's package dataset-fashion-mnist installs them",
               folder, prefix));
  }
  return open_idx(images, find_idx(folder, prefix + "-labels", "idx1"), 10);
}

std::shared_ptr<const Dataset> open_cifar(const std::string& folder, bool train, int classes) {
  check(classes == 10 || classes == 100, "CIFAR: {} classes; expected 10 or 100", classes);
  const bool fine = classes == 100;
  std::vector<std::string> files;
  if (fine) {
    files = {train ? "train.bin" : "test.bin"};
  } else if (train) {
    for (int i = 1; i <= 5; ++i) {
      files.push_back("data_batch_" + std::to_string(i) + ".bin");
    }
  } else {
    files = {"test_batch.bin"};
  }
  // As unpacked, or the folder that it was unpacked in.
  const std::string inside = folder + (fine ? "/cifar-100-binary/" : "/cifar-10-batches-bin/");
  const std::string& base = file_exists(inside + files.front()) ? inside : folder + "/";
  const std::size_t labels = fine ? 2 : 1;  // coarse, then fine
  const std::size_t record = labels + 3072;
  std::vector<std::byte> pixels;
  std::vector<std::byte> column;
  for (const std::string& name : files) {
    const DataFile file(base + name);
    if (file.bytes() == 0 || file.bytes() % i64(record) != 0) {
      throw DataError(format("{}: {} bytes; expected a multiple of {}, the size of one record",
                             file.path(), file.bytes(), record));
    }
    std::vector<std::byte> bytes(std::size_t(file.bytes()));
    file.read(0, bytes);
    const std::size_t count = bytes.size() / record;
    const std::size_t before = pixels.size();
    pixels.resize(before + count * 3072);
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* from = bytes.data() + i * record;
      add_label(column, from[labels - 1], classes, file.path());
      // Planes of red, green and blue become pixels.
      std::byte* to = pixels.data() + before + i * 3072;
      for (std::size_t p = 0; p < 1024; ++p) {
        for (std::size_t c = 0; c < 3; ++c) {
          to[p * 3 + c] = from[labels + c * 1024 + p];
        }
      }
    }
  }
  return pictures(folder, {32, 32, 3}, std::move(pixels), std::move(column));
}

}  // namespace penstock::data
