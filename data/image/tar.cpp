#include "data/image/tar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>

#include "data/image/name.h"
#include "framework/core/check.h"

namespace penstock::data::image {
namespace {

constexpr i64 kBlock = 512;
constexpr i64 kMaxName = 4096;
constexpr i64 kMaxExtended = i64{1} << 20;

// Fields of a header block (POSIX.1-1988 ustar).
struct Field {
  std::size_t at;
  std::size_t length;
};
constexpr Field kName{0, 100};
constexpr Field kSize{124, 12};
constexpr Field kChecksum{148, 8};
constexpr std::size_t kType = 156;
constexpr Field kMagic{257, 5};
constexpr Field kPrefix{345, 155};

using Block = std::array<std::byte, std::size_t(kBlock)>;

class TarReader {
 public:
  explicit TarReader(const TarSource& source) : source_(source) {}

  void run(FunctionRef<void(const TarMember&)> member) {
    for (;;) {
      if (source_.bytes - at_ < kBlock) {
        refuse("ends without its end mark: the file is cut");
      }
      source_.read(at_, block_);
      if (std::all_of(block_.begin(), block_.end(),
                      [](std::byte b) { return b == std::byte{0}; })) {
        return;
      }
      at_ += kBlock;
      step(member);
    }
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    const std::string where =
        name_.empty() ? format("at byte {}", at_) : format("member {}", quoted_name(name_));
    throw DataError(format("tar file {}, {}: {}", quoted_name(source_.name), where, what));
  }

  std::string_view text(Field field) const {
    const std::string_view all(reinterpret_cast<const char*>(block_.data()) + field.at,
                               field.length);
    return all.substr(0, all.find('\0'));
  }

  // Octal digits between spaces and NULs, or GNU's base-256 for what does not fit.
  std::optional<i64> number(Field field) const {
    const auto byte = [this, field](std::size_t i) {
      return std::to_integer<std::uint64_t>(block_[field.at + i]);
    };
    if (byte(0) == 0x80) {
      std::uint64_t value = 0;
      for (std::size_t i = 1; i < field.length; ++i) {
        if (value >> 55 != 0) {
          return std::nullopt;
        }
        value = (value << 8) | byte(i);
      }
      return i64(value);
    }
    std::string_view digits = text(field);
    while (!digits.empty() && digits.front() == ' ') {
      digits.remove_prefix(1);
    }
    while (!digits.empty() && digits.back() == ' ') {
      digits.remove_suffix(1);
    }
    std::uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      return std::nullopt;
    }
    return i64(value);
  }

  bool checksum_holds() const {
    const std::optional<i64> stated = number(kChecksum);
    i64 sum = 0;
    for (std::size_t i = 0; i < block_.size(); ++i) {
      const bool own = i >= kChecksum.at && i < kChecksum.at + kChecksum.length;
      sum += own ? ' ' : std::to_integer<i64>(block_[i]);
    }
    return stated == sum;
  }

  // The bytes of an extended header or long name.
  std::string body(i64 size, i64 cap) {
    if (size > cap) {
      refuse(format("an extended header of {} bytes exceeds the limit of {}", size, cap));
    }
    std::string bytes(std::size_t(size), '\0');
    source_.read(at_, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  // Records "LENGTH KEY=VALUE\n" of a pax header (POSIX.1-2001).
  void read_pax(std::string_view records) {
    while (!records.empty()) {
      std::size_t length = 0;
      const char* begin = records.data();
      const auto [end, error] = std::from_chars(begin, begin + records.size(), length);
      const auto digits = std::size_t(end - begin);
      if (error != std::errc() || length <= digits + 1 || length > records.size() ||
          records[digits] != ' ' || records[length - 1] != '\n') {
        refuse("damaged pax header");
      }
      const std::string_view record = records.substr(digits + 1, length - digits - 2);
      const std::size_t equals = record.find('=');
      if (equals == std::string_view::npos) {
        refuse("damaged pax header");
      }
      const std::string_view key = record.substr(0, equals);
      const std::string_view value = record.substr(equals + 1);
      if (key == "path") {
        if (i64(value.size()) > kMaxName) {
          refuse(format("a name of {} bytes exceeds the limit of {}", value.size(), kMaxName));
        }
        next_name_.assign(value);
      } else if (key == "size") {
        i64 size = -1;
        const auto parsed = std::from_chars(value.data(), value.data() + value.size(), size);
        if (parsed.ec != std::errc() || parsed.ptr != value.data() + value.size() || size < 0) {
          refuse("damaged pax size");
        }
        next_size_ = size;
      } else if (key.starts_with("GNU.sparse.")) {
        refuse("sparse files are not supported; pack the shard without --sparse");
      }
      records.remove_prefix(length);
    }
  }

  void step(FunctionRef<void(const TarMember&)> member) {
    name_.assign(next_name_);
    if (name_.empty()) {
      // The prefix field exists under ustar's magic only; GNU's old format keeps times there.
      const bool ustar = text(kMagic) == "ustar" && block_[kMagic.at + 5] == std::byte{0};
      const std::string_view prefix = ustar ? text(kPrefix) : std::string_view();
      name_.assign(prefix);
      name_ += prefix.empty() ? "" : "/";
      name_ += text(kName);
    }
    if (!checksum_holds()) {
      refuse("damaged header: the checksum does not hold; is it a tar file?");
    }
    const char type = char(block_[kType]);
    const std::optional<i64> stated = number(kSize);
    const bool extended = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    const i64 size = !extended && next_size_ ? *next_size_ : stated.value_or(-1);
    if (size < 0) {
      refuse("damaged header: the size is not a number");
    }
    if (size > source_.bytes - at_) {
      refuse(format("{} bytes are stated, {} follow: the file is cut", size, source_.bytes - at_));
    }
    switch (type) {
      case '0':
      case '\0':
      case '7':
        // Before ustar a folder was a file whose name ends in a slash.
        if (!name_.ends_with('/')) {
          member({.name = name_, .offset = at_, .size = size});
        }
        break;
      case '5':
      case 'V':  // the volume's label
        break;
      case 'x': read_pax(body(size, kMaxExtended)); break;
      case 'g': body(size, kMaxExtended); break;  // defaults for all members; none concern us
      case 'L':
        next_name_ = body(size, kMaxName);
        next_name_.resize(std::min(next_name_.find('\0'), next_name_.size()));
        break;
      case '1':
      case '2':
      case 'K': refuse("links are not supported; pack the shard with --dereference");
      case '3':
      case '4':
      case '6': refuse("devices and pipes are not supported");
      case 'S': refuse("sparse files are not supported; pack the shard without --sparse");
      default: refuse(format("unknown member type {}", int(type)));
    }
    if (!extended) {
      next_name_.clear();
      next_size_.reset();
    }
    name_.clear();
    // The last member's padding may be missing only together with the end mark.
    at_ += (size + kBlock - 1) / kBlock * kBlock;
    if (at_ > source_.bytes) {
      refuse("ends without its end mark: the file is cut");
    }
  }

  const TarSource& source_;
  Block block_{};
  i64 at_ = 0;
  std::string name_;
  std::string next_name_;
  std::optional<i64> next_size_;
};

}  // namespace

void read_tar(const TarSource& source, FunctionRef<void(const TarMember&)> member) {
  TarReader(source).run(member);
}

}  // namespace penstock::data::image
