#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>

#include "data/image/index.h"
#include "data/image/name.h"
#include "data/image/tar.h"
#include "framework/core/check.h"
#include "framework/core/log.h"

namespace penstock::data::image {
namespace {

constexpr i64 kMaxClassBytes = 64;
constexpr i64 kMaxJsonBytes = i64{1} << 20;
constexpr i64 kMaxLabel = 1 << 24;
constexpr std::size_t kListed = 5;

class ShardFile {
 public:
  explicit ShardFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)) {
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) {
      const int error = errno;
      close();
      throw DataError(
          format("shard {}: cannot be opened: {}", quoted_name(path), std::strerror(error)));
    }
    if (!S_ISREG(status.st_mode)) {
      close();
      throw DataError(format("shard {}: is not a regular file", quoted_name(path)));
    }
    bytes_ = status.st_size;
  }
  ~ShardFile() { close(); }
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  i64 bytes() const { return bytes_; }
  void read(i64 offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ssize_t count = ::pread(fd_, to.data(), to.size(), offset);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        throw DataError(format("shard {}: read failed at byte {}: {}", quoted_name(path_), offset,
                               count < 0 ? std::strerror(errno) : "the file became shorter"));
      }
      offset += count;
      to = to.subspan(std::size_t(count));
    }
  }

 private:
  void close() {
    if (fd_ >= 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }
  std::string path_;
  int fd_;
  i64 bytes_ = 0;
};

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  return out;
}

// "a/b.c.jpg" -> key "a/b", extension "c.jpg".
void split(std::string_view name, std::string_view& key, std::string_view& extension) {
  const std::size_t slash = name.rfind('/');
  const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', base);
  key = name.substr(0, dot);
  extension = dot == std::string_view::npos ? std::string_view() : name.substr(dot + 1);
}

std::string_view folder_of(std::string_view key) {
  const std::size_t slash = key.rfind('/');
  if (slash == std::string_view::npos) {
    return {};
  }
  const std::string_view folders = key.substr(0, slash);
  const std::size_t before = folders.rfind('/');
  return before == std::string_view::npos ? folders : folders.substr(before + 1);
}

}  // namespace

class ShardScanner {
 public:
  ShardScanner(ShardIndex& index, const ShardOptions& options) : index_(index), options_(options) {}

  void scan(const std::string& path) {
    path_ = path;
    const ShardFile file(path);
    file_ = &file;
    const auto shard = std::uint32_t(index_.shards_.size());
    index_.shards_.push_back(path);
    const i64 first = index_.size();
    const auto read = [&file](i64 offset, std::span<std::byte> to) { file.read(offset, to); };
    const auto member = [this, shard](const TarMember& m) { take(m, shard); };
    read_tar({.name = path, .bytes = file.bytes(), .read = read}, member);
    close_sample();
    check_repeats(first);
    file_ = nullptr;
  }

  void finish() {
    if (ignored_ > 0) {
      log::info("shards: {} members are neither pictures nor labels and are ignored: {}{}",
                ignored_, listed_, ignored_ > kListed ? ", ..." : "");
    }
    if (index_.samples_.empty()) {
      throw DataError(format("shards: no pictures in {} files, the first of them {}",
                             index_.shards_.size(), quoted_name(index_.shards_.front())));
    }
    if (by_folder_) {
      number_classes();
    } else {
      for (const ShardIndex::Sample& sample : index_.samples_) {
        index_.classes_ = std::max(index_.classes_, i64(sample.label) + 1);
      }
    }
    index_.keys_.shrink();
    index_.samples_.shrink_to_fit();
  }

 private:
  struct Open {
    std::string key;
    bool any = false;
    bool picture = false;
    i64 label = -1;
    ShardIndex::Sample sample;
  };

  [[noreturn]] void refuse(std::string_view name, std::string_view what) const {
    throw DataError(format("shard {}, {}: {}", quoted_name(path_), quoted_name(name), what));
  }

  void take(const TarMember& member, std::uint32_t shard) {
    std::string_view key;
    std::string_view extension_text;
    split(member.name, key, extension_text);
    const std::string extension = lower(extension_text);
    const bool picture = extension == "jpg" || extension == "jpeg" || extension == "png";
    const bool number = extension == "cls";
    const bool json = extension == "json";
    if (!picture && !number && !json) {
      if (ignored_++ < kListed) {
        listed_ += (listed_.empty() ? "" : ", ") + quoted_name(member.name);
      }
      return;
    }
    if (!open_.any || open_.key != key) {
      close_sample();
      open_.key.assign(key);
      open_.any = true;
    }
    if (picture) {
      if (open_.picture) {
        refuse(member.name, "the sample already has a picture");
      }
      if (member.size > i64(std::numeric_limits<std::uint32_t>::max())) {
        refuse(member.name, "the picture exceeds 4 GiB");
      }
      open_.picture = true;
      open_.sample = {
          .offset = member.offset, .size = std::uint32_t(member.size), .label = 0, .shard = shard};
    } else {
      if (open_.label >= 0) {
        refuse(member.name, "the sample already has a label");
      }
      open_.label = number ? class_number(member) : json_label(member);
    }
  }

  std::string text_of(const TarMember& member, i64 cap) const {
    if (member.size > cap) {
      refuse(member.name, format("{} bytes exceed the limit of {}", member.size, cap));
    }
    std::string text(std::size_t(member.size), '\0');
    file_->read(member.offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  i64 class_number(const TarMember& member) const {
    const std::string all = text_of(member, kMaxClassBytes);
    std::string_view text = all;
    constexpr std::string_view kBlank = " \t\r\n";
    text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
    text = text.substr(0, text.find_last_not_of(kBlank) + 1);
    i64 label = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
    if (error != std::errc() || end != text.data() + text.size() || label < 0 ||
        label > kMaxLabel) {
      refuse(member.name, format("expected a class number from 0 to {}", kMaxLabel));
    }
    return label;
  }

  i64 json_label(const TarMember& member) const {
    const std::string text = text_of(member, kMaxJsonBytes);
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_object()) {
      const auto found = json.find(options_.label_key);
      if (found != json.end() && found->is_number_integer()) {
        const auto label = found->get<std::int64_t>();
        if (label >= 0 && label <= kMaxLabel) {
          return label;
        }
      }
    }
    refuse(member.name, format("expected an object with {}: a class number from 0 to {}",
                               quoted_name(options_.label_key), kMaxLabel));
  }

  void close_sample() {
    if (!open_.any) {
      return;
    }
    if (!open_.picture) {
      refuse(open_.key, "the sample has a label, but no .jpg, .jpeg or .png");
    }
    const bool by_folder = open_.label < 0;
    if (by_folder && folder_of(open_.key).empty()) {
      refuse(open_.key, "the sample has no .cls, no .json and no folder that names its class");
    }
    if (!index_.samples_.empty() && by_folder != by_folder_) {
      refuse(open_.key, "the sample's label is of another kind than those before it");
    }
    by_folder_ = by_folder;
    open_.sample.label = by_folder ? class_of(folder_of(open_.key)) : std::int32_t(open_.label);
    index_.samples_.push_back(open_.sample);
    index_.keys_.add(open_.key);
    open_ = {};
  }

  // Classes in the order met; number_classes() sorts them.
  std::int32_t class_of(std::string_view folder) {
    const auto [found, added] =
        met_.try_emplace(std::string(folder), std::int32_t(index_.class_names_.size()));
    if (added) {
      index_.class_names_.emplace_back(folder);
    }
    return found->second;
  }

  void number_classes() {
    std::vector<std::string> sorted = index_.class_names_;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int32_t> number(sorted.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      number[std::size_t(met_.at(sorted[i]))] = std::int32_t(i);
    }
    for (ShardIndex::Sample& sample : index_.samples_) {
      sample.label = number[std::size_t(sample.label)];
    }
    index_.class_names_ = std::move(sorted);
    index_.classes_ = i64(index_.class_names_.size());
  }

  void check_repeats(i64 first) const {
    std::vector<std::string_view> keys;
    for (i64 i = first; i < index_.size(); ++i) {
      keys.push_back(index_.keys_[i]);
    }
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      refuse(*twice, "the sample occurs twice");
    }
  }

  ShardIndex& index_;
  ShardOptions options_;
  std::string path_;
  const ShardFile* file_ = nullptr;
  Open open_;
  bool by_folder_ = false;
  std::unordered_map<std::string, std::int32_t> met_;
  std::size_t ignored_ = 0;
  std::string listed_;
};

ShardIndex ShardIndex::scan(const std::vector<std::string>& shards, const ShardOptions& options) {
  if (shards.empty()) {
    throw DataError("shards: the list of tar files is empty");
  }
  ShardIndex index;
  ShardScanner scanner(index, options);
  for (const std::string& shard : shards) {
    scanner.scan(shard);
  }
  scanner.finish();
  return index;
}

void ShardIndex::place(i64 index, Place& place) const {
  const Sample& sample = samples_[std::size_t(index)];
  place.path.assign(shards_[sample.shard]);
  place.offset = sample.offset;
  place.size = sample.size;
}

void ShardIndex::describe(i64 index, std::string& text) const {
  text.assign(shards_[samples_[std::size_t(index)].shard]);
  text.append(":").append(keys_[index]);
}

std::uint64_t ShardIndex::fingerprint() const {
  std::uint64_t hash = kHashStart;
  for (i64 i = 0; i < size(); ++i) {
    hash = hash_text(hash, keys_[i]);
    hash = hash_text(hash, std::to_string(samples_[std::size_t(i)].label));
  }
  return hash;
}

i64 ShardIndex::bytes() const {
  i64 bytes = keys_.bytes() + i64(samples_.capacity() * sizeof(Sample));
  for (const std::string& shard : shards_) {
    bytes += i64(shard.capacity() + sizeof(std::string));
  }
  return bytes;
}

std::vector<std::string> list_shards(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> handle(::opendir(folder.c_str()), ::closedir);
  if (handle == nullptr) {
    throw DataError(
        format("shard folder {}: cannot be read: {}", quoted_name(folder), std::strerror(errno)));
  }
  std::vector<std::string> shards;
  while (const dirent* entry = ::readdir(handle.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with('.') && lower(name).ends_with(".tar")) {
      shards.push_back(folder + "/" + std::string(name));
    }
  }
  if (shards.empty()) {
    throw DataError(format("shard folder {}: holds no .tar files", quoted_name(folder)));
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

}  // namespace penstock::data::image
