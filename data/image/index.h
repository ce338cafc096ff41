// Which pictures there are: a compact table of names, places and labels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/core/target.h"

namespace penstock::data::image {

// Many short strings in one block: 8 bytes and its own length each.
class NameTable {
 public:
  i64 size() const { return i64(ends_.size()); }
  std::string_view operator[](i64 i) const {
    const std::uint64_t begin = i == 0 ? 0 : ends_[std::size_t(i - 1)];
    return std::string_view(text_).substr(begin, ends_[std::size_t(i)] - begin);
  }
  void add(std::string_view name) {
    text_.append(name);
    ends_.push_back(text_.size());
  }
  void clear() {
    text_.clear();
    ends_.clear();
  }
  void shrink() {
    text_.shrink_to_fit();
    ends_.shrink_to_fit();
  }
  i64 bytes() const {
    return i64(text_.capacity()) + i64(ends_.capacity() * sizeof(std::uint64_t));
  }

 private:
  std::string text_;
  std::vector<std::uint64_t> ends_;
};

// Where a sample's bytes are; `size` is Reader::kToEnd for a whole file.
struct Place {
  std::string path;
  i64 offset = 0;
  i64 size = -1;
};

// A tree ROOT/CLASS/.../PICTURE.
struct FolderOptions {
  bool allow_empty_classes = false;  // an empty class keeps its number
  bool allow_outside_links = false;  // links may leave the root
};

// Classes are the root's folders, sorted by bytes; samples follow class by class, sorted by bytes
// of their path inside the class. Names that begin with a dot are ignored, on every level. Pictures
// end in .jpg, .jpeg, .jpe, .jfif or .png, in any case; everything else is ignored and listed once
// in the log. Pipes, sockets and devices are passed over. Under 40 bytes a file beside its name.
class FolderIndex {
 public:
  // Reads the tree. Throws DataError naming the entry: no classes, a class without pictures, a link
  // that leads out of the root, nowhere, or back to a folder it lies in; a folder that cannot be
  // read.
  static FolderIndex scan(const std::string& root, const FolderOptions& options = {});

  // An index without files behind it, class by class; for tests and tools.
  explicit FolderIndex(std::string root) : root_(std::move(root)) {}
  void begin_class(std::string_view name);
  void add_file(std::string_view name);  // path inside the class
  void finish();

  i64 size() const { return names_.size(); }
  i64 label(i64 index) const;
  void place(i64 index, Place& place) const;
  std::vector<std::string> class_names() const;
  // Changes when a class or a file is added, removed or renamed.
  std::uint64_t fingerprint() const;
  // Memory held.
  i64 bytes() const;

 private:
  std::string root_;
  NameTable classes_;
  std::vector<i64> class_begin_;
  NameTable names_;
};

// Tar shards in the layout of WebDataset: members of one sample share the path up to the first dot
// of the file name and stand together: KEY.jpg (or .jpeg, .png), and KEY.cls (a decimal number) or
// KEY.json (an object with an integer under `label_key`); or no label member, then the last folder
// of KEY names the class, and classes are numbered in byte order over all shards. Other members are
// ignored and listed once in the log.
struct ShardOptions {
  std::string label_key = "label";
};

class ShardIndex {
 public:
  // Reads the headers of all members; nothing is extracted. Throws DataError naming shard and
  // member: what read_tar() refuses, a repeated key, a picture without a label or a label without a
  // picture, labels of different kinds.
  static ShardIndex scan(const std::vector<std::string>& shards, const ShardOptions& options = {});

  i64 size() const { return i64(samples_.size()); }
  i64 label(i64 index) const { return samples_[std::size_t(index)].label; }
  void place(i64 index, Place& place) const;
  // "shard.tar:KEY", for messages.
  void describe(i64 index, std::string& text) const;
  // Empty when labels are numbers.
  std::vector<std::string> class_names() const { return class_names_; }
  i64 classes() const { return classes_; }
  std::uint64_t fingerprint() const;
  i64 bytes() const;

 private:
  friend class ShardScanner;
  struct Sample {
    i64 offset = 0;
    std::uint32_t size = 0;
    std::int32_t label = 0;
    std::uint32_t shard = 0;
  };
  std::vector<std::string> shards_;
  std::vector<Sample> samples_;
  NameTable keys_;
  std::vector<std::string> class_names_;
  i64 classes_ = 0;
};

// The *.tar files of a folder, sorted by bytes; hidden ones ignored. Throws DataError when none.
std::vector<std::string> list_shards(const std::string& folder);

// FNV-1a, continued from `hash`, with the text's length so that borders between texts count.
std::uint64_t hash_text(std::uint64_t hash, std::string_view text);
constexpr std::uint64_t kHashStart = 0xCBF29CE484222325u;

// Whether a file name ends in one of the pictures' extensions, in any case.
bool has_picture_extension(std::string_view name);

}  // namespace penstock::data::image
