#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "data/image/index.h"
#include "data/image/name.h"
#include "framework/core/check.h"
#include "framework/core/log.h"

namespace penstock::data::image {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kListed = 5;

enum class Kind { kFile, kFolder, kOther };

struct Entry {
  std::string name;
  Kind kind = Kind::kOther;
};

struct Identity {
  dev_t device = 0;
  ino_t node = 0;
  bool operator==(const Identity&) const = default;
};

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

class Scanner {
 public:
  Scanner(const std::string& root, const FolderOptions& options) : options_(options), root_(root) {
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(root.c_str(), nullptr), std::free);
    if (real == nullptr) {
      throw DataError(
          format("image folder {}: cannot be opened: {}", quoted_name(root), std::strerror(errno)));
    }
    real_root_ = real.get();
  }

  // The folder's entries but hidden ones, unsorted; links are followed as the options allow.
  std::vector<Entry> list(const std::string& path) {
    const std::unique_ptr<DIR, CloseFolder> folder(::opendir(path.c_str()));
    if (folder == nullptr) {
      throw DataError(
          format("image folder {}: cannot be read: {}", quoted_name(path), std::strerror(errno)));
    }
    std::vector<Entry> entries;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(folder.get());
      if (entry == nullptr) {
        if (errno != 0) {
          throw DataError(format("image folder {}: cannot be read: {}", quoted_name(path),
                                 std::strerror(errno)));
        }
        return entries;
      }
      if (entry->d_name[0] != '.') {
        entries.push_back({entry->d_name, kind_of(path, *entry)});
      }
    }
  }

  // Pictures below `path`, as paths inside the class.
  void collect(const std::string& path, const std::string& prefix, NameTable& found) {
    if (ancestors_.size() >= kMaxDepth) {
      throw DataError(
          format("image folder {}: more than {} folders deep", quoted_name(path), kMaxDepth));
    }
    const Identity here = identity(path);
    if (std::find(ancestors_.begin(), ancestors_.end(), here) != ancestors_.end()) {
      throw DataError(format("image folder {}: a link leads back to a folder that it lies in",
                             quoted_name(path)));
    }
    ancestors_.push_back(here);
    for (const Entry& entry : list(path)) {
      if (entry.kind == Kind::kFolder) {
        std::string below = prefix;
        below.append(entry.name).append("/");
        collect(path + "/" + entry.name, below, found);
      } else if (entry.kind == Kind::kFile && has_picture_extension(entry.name)) {
        found.add(prefix + entry.name);
      } else {
        ignore(path + "/" + entry.name);
      }
    }
    ancestors_.pop_back();
  }

  void ignore(const std::string& path) {
    if (ignored_++ < kListed) {
      listed_ += (listed_.empty() ? "" : ", ") + quoted_name(path);
    }
  }

  void report() const {
    if (ignored_ > 0) {
      log::info("image folder {}: {} entries are not pictures and are ignored: {}{}",
                quoted_name(root_), ignored_, listed_, ignored_ > kListed ? ", ..." : "");
    }
  }

 private:
  static Identity identity(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      throw DataError(format("image folder {}: cannot be examined: {}", quoted_name(path),
                             std::strerror(errno)));
    }
    return {status.st_dev, status.st_ino};
  }

  static Kind kind_of_mode(mode_t mode) {
    return S_ISDIR(mode) ? Kind::kFolder : S_ISREG(mode) ? Kind::kFile : Kind::kOther;
  }

  Kind kind_of(const std::string& folder, const dirent& entry) {
    // Most file systems tell the kind here, which saves a call per file.
    switch (entry.d_type) {
      case DT_REG: return Kind::kFile;
      case DT_DIR: return Kind::kFolder;
      case DT_LNK:
      case DT_UNKNOWN: break;
      default: return Kind::kOther;
    }
    const std::string path = folder + "/" + entry.d_name;
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) {
      throw DataError(format("image folder {}: cannot be examined: {}", quoted_name(path),
                             std::strerror(errno)));
    }
    return S_ISLNK(status.st_mode) ? follow(path) : kind_of_mode(status.st_mode);
  }

  Kind follow(const std::string& path) {
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
    if (real == nullptr) {
      throw DataError(format("image folder: the link {} leads nowhere: {}", quoted_name(path),
                             std::strerror(errno)));
    }
    const std::string_view target = real.get();
    const bool inside = target == real_root_ || (target.starts_with(real_root_) &&
                                                 target.substr(real_root_.size()).starts_with('/'));
    if (!inside && !options_.allow_outside_links) {
      throw DataError(
          format("image folder: the link {} leads out of the data set, to {}; set "
                 "data.follow_links to allow that",
                 quoted_name(path), quoted_name(target)));
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      throw DataError(format("image folder {}: cannot be examined: {}", quoted_name(path),
                             std::strerror(errno)));
    }
    return kind_of_mode(status.st_mode);
  }

  FolderOptions options_;
  std::string root_;
  std::string real_root_;
  std::vector<Identity> ancestors_;
  std::size_t ignored_ = 0;
  std::string listed_;
};

}  // namespace

std::uint64_t hash_text(std::uint64_t hash, std::string_view text) {
  constexpr std::uint64_t kPrime = 0x100000001B3u;
  for (const char c : text) {
    hash = (hash ^ std::uint8_t(c)) * kPrime;
  }
  return (hash ^ text.size()) * kPrime;
}

bool has_picture_extension(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kExtensions = {".jpg", ".jpeg", ".jpe", ".jfif",
                                                                  ".png"};
  return std::any_of(kExtensions.begin(), kExtensions.end(), [name](std::string_view extension) {
    return name.size() > extension.size() &&
           std::equal(extension.begin(), extension.end(), name.end() - i64(extension.size()),
                      [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b + 32 : b); });
  });
}

FolderIndex FolderIndex::scan(const std::string& root, const FolderOptions& options) {
  Scanner scanner(root, options);
  std::vector<std::string> classes;
  for (const Entry& entry : scanner.list(root)) {
    if (entry.kind == Kind::kFolder) {
      classes.push_back(entry.name);
    } else {
      scanner.ignore(root + "/" + entry.name);
    }
  }
  if (classes.empty()) {
    throw DataError(format("image folder {}: holds no class folders; expected {}/CLASS/PICTURE.jpg",
                           quoted_name(root), quoted_name(root)));
  }
  std::sort(classes.begin(), classes.end());
  FolderIndex index(root);
  NameTable found;
  std::vector<std::uint32_t> order;
  for (const std::string& name : classes) {
    found.clear();
    std::string path = root;
    path.append("/").append(name);
    scanner.collect(path, "", found);
    if (found.size() == 0 && !options.allow_empty_classes) {
      throw DataError(
          format("image folder {}: the class {} holds no pictures; remove it, or set "
                 "data.allow_empty_classes to keep its number",
                 quoted_name(root), quoted_name(name)));
    }
    order.resize(std::size_t(found.size()));
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&found](std::uint32_t a, std::uint32_t b) { return found[a] < found[b]; });
    index.begin_class(name);
    for (const std::uint32_t i : order) {
      index.add_file(found[i]);
    }
  }
  scanner.report();
  index.finish();
  if (index.size() == 0) {
    throw DataError(format("image folder {}: holds no pictures", quoted_name(root)));
  }
  return index;
}

void FolderIndex::begin_class(std::string_view name) {
  classes_.add(name);
  class_begin_.push_back(names_.size());
}

void FolderIndex::add_file(std::string_view name) {
  names_.add(name);
}

void FolderIndex::finish() {
  names_.shrink();
  classes_.shrink();
  class_begin_.shrink_to_fit();
}

i64 FolderIndex::label(i64 index) const {
  // The last class that begins at or before the sample: empty classes begin where the next does.
  const auto after = std::upper_bound(class_begin_.begin(), class_begin_.end(), index);
  return i64(after - class_begin_.begin()) - 1;
}

void FolderIndex::place(i64 index, Place& place) const {
  place.path.assign(root_);
  place.path += '/';
  place.path += classes_[label(index)];
  place.path += '/';
  place.path += names_[index];
  place.offset = 0;
  place.size = -1;
}

std::vector<std::string> FolderIndex::class_names() const {
  std::vector<std::string> names;
  for (i64 i = 0; i < classes_.size(); ++i) {
    names.emplace_back(classes_[i]);
  }
  return names;
}

std::uint64_t FolderIndex::fingerprint() const {
  std::uint64_t hash = kHashStart;
  for (i64 c = 0; c < classes_.size(); ++c) {
    hash = hash_text(hash, classes_[c]);
    hash = hash_text(hash, std::to_string(class_begin_[std::size_t(c)]));
  }
  for (i64 i = 0; i < names_.size(); ++i) {
    hash = hash_text(hash, names_[i]);
  }
  return hash;
}

i64 FolderIndex::bytes() const {
  return names_.bytes() + classes_.bytes() + i64(class_begin_.capacity() * sizeof(i64));
}

}  // namespace penstock::data::image
