#include "framework/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

namespace penstock::io {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 15> kTypeNames = {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3",
                                                    "I16",  "U16", "F16", "BF16",    "I32",
                                                    "U32",  "F32", "F64", "I64",     "U64"};

std::optional<StoredType> parse_type(std::string_view name) {
  for (std::size_t i = 0; i < kTypeNames.size(); ++i) {
    if (name == kTypeNames[i]) {
      return StoredType(i);
    }
  }
  return std::nullopt;
}

template <class... Args>
[[noreturn]] void refuse(const std::string& path, std::string_view text, const Args&... args) {
  throw DataError(format("safetensors {}: {}", path, format(text, args...)));
}

// Bytes of white space, digits or letters in a row, outside strings. Padding is far shorter.
constexpr i64 kRunBytes = i64{1} << 20;

// The header's bytes, read from the file in pieces. Guards what the parser would buffer without
// limit: the length of a string, of a number and of white space; and what it takes for the end of
// the text: a NUL.
class HeaderStream {
 public:
  HeaderStream(const InputFile& file, i64 bytes) : file_(file), left_(bytes) { fill(); }

  bool at_end() const { return at_ == filled_; }
  char current() const { return piece_[at_]; }
  void advance() {
    watch(piece_[at_]);
    if (++at_ == filled_) {
      fill();
    }
  }

 private:
  void fill() {
    at_ = 0;
    filled_ = std::size_t(std::min<i64>(left_, i64(piece_.size())));
    file_.read(offset_, std::as_writable_bytes(std::span(piece_).first(filled_)));
    offset_ += i64(filled_);
    left_ -= i64(filled_);
  }
  void watch(char c) {
    if (c == '\0') {
      refuse(file_.path(), "the header holds a NUL byte");
    }
    if (!in_string_) {
      in_string_ = c == '"';
      const bool structure =
          c == '"' || c == ',' || c == ':' || c == '{' || c == '}' || c == '[' || c == ']';
      length_ = structure ? 0 : length_ + 1;
      if (length_ > kRunBytes) {
        refuse(file_.path(), "more than {} bytes of white space or of one number in the header",
               kRunBytes);
      }
      return;
    }
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    if (++length_ > SafetensorsLimits::kStringBytes) {
      refuse(file_.path(), "a string in the header is longer than {} bytes",
             SafetensorsLimits::kStringBytes);
    }
  }

  const InputFile& file_;
  std::array<char, 16384> piece_{};
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  i64 offset_ = 8;
  i64 left_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  i64 length_ = 0;  // of the string, or of what stands between marks of structure
};

// What the parser wants: an input iterator. The end is the iterator without a stream.
class HeaderIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  HeaderIterator() = default;
  explicit HeaderIterator(HeaderStream* stream) : stream_(stream) {}
  char operator*() const { return stream_->current(); }
  HeaderIterator& operator++() {
    stream_->advance();
    return *this;
  }
  bool operator==(const HeaderIterator& other) const { return ended() == other.ended(); }
  bool operator!=(const HeaderIterator& other) const { return !(*this == other); }

 private:
  bool ended() const { return stream_ == nullptr || stream_->at_end(); }
  HeaderStream* stream_ = nullptr;
};

// Hears the parser's events. The grammar it admits:
// {"name": {"dtype": s, "shape": [n...], "data_offsets": [n, n]}, ..., "__metadata__": {s: s, ...}}
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  HeaderHandler(const std::string& path, i64 data_bytes) : path_(path), data_bytes_(data_bytes) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
      if (place_ == Place::kMetadata && std::exchange(has_metadata_, true)) {
        refuse(path_, "\"__metadata__\" appears twice");
      }
      seen_ = 0;
      tensor_ = {};
    } else {
      refuse(path_, "unexpected object inside {}", in_quotes(name_));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      finish_tensor();
      place_ = Place::kTop;
    } else if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
    } else {
      place_ = Place::kEnd;
    }
    return true;
  }

  bool key(Json::string_t& key) override {
    if (place_ == Place::kTop) {
      name_ = key;
      check_name();
    } else if (place_ == Place::kMetadata) {
      if (i64(header_.metadata.size()) >= SafetensorsLimits::kMetadataEntries) {
        refuse(path_, "more than {} metadata entries", SafetensorsLimits::kMetadataEntries);
      }
      if (i64(key.size()) > SafetensorsLimits::kNameBytes) {
        refuse(path_, "metadata key {} is too long", in_quotes(key));
      }
      header_.metadata.emplace_back(key, "");
    } else {
      start_field(key);
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || (field_ != kShape && field_ != kOffsets)) {
      unexpected("a list");
    }
    place_ = Place::kList;
    list_size_ = 0;
    return true;
  }

  bool end_array() override {
    if (field_ == kShape) {
      rank_ = list_size_;
    } else if (list_size_ != 2) {
      refuse(path_, "tensor {}: data_offsets has {} numbers, expected 2", in_quotes(name_),
             list_size_);
    }
    place_ = Place::kTensor;
    return true;
  }

  bool number_unsigned(Json::number_unsigned_t value) override {
    if (place_ != Place::kList) {
      unexpected("a number");
    }
    const std::size_t limit = field_ == kShape ? Shape::kMaxRank : 2;
    if (list_size_ == limit) {
      refuse(path_, "tensor {}: {} has more than {} numbers", in_quotes(name_),
             field_ == kShape ? "shape" : "data_offsets", limit);
    }
    if (value > std::uint64_t(std::numeric_limits<i64>::max())) {
      refuse(path_, "tensor {}: {} is out of range", in_quotes(name_), value);
    }
    (field_ == kShape ? dims_[list_size_] : offsets_[list_size_]) = i64(value);
    ++list_size_;
    return true;
  }

  bool string(Json::string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.back().second = value;
    } else if (place_ == Place::kTensor && field_ == kDtype) {
      const auto type = parse_type(value);
      if (!type) {
        refuse(path_, "tensor {}: dtype {} is not known", in_quotes(name_), in_quotes(value, 24));
      }
      tensor_.type = *type;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool number_integer(Json::number_integer_t) override { unexpected("a negative number"); }
  bool number_float(Json::number_float_t, const Json::string_t&) override {
    unexpected("a number that is not a whole number below 2^64");
  }
  bool binary(Json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    refuse(path_, "the header is not valid JSON at byte {} of it", position);
  }

 private:
  enum class Place { kStart, kTop, kTensor, kMetadata, kList, kEnd };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4 };

  [[noreturn]] void unexpected(const char* what) const {
    const std::string where =
        place_ == Place::kStart ? std::string("at its start") : "in " + in_quotes(name_);
    if (place_ == Place::kMetadata) {
      refuse(path_, "\"__metadata__\" maps strings to strings, found {}", what);
    }
    refuse(path_, "unexpected {} {}", what, where);
  }

  void check_name() const {
    if (i64(name_.size()) > SafetensorsLimits::kNameBytes) {
      refuse(path_, "tensor name {} is longer than {} bytes", in_quotes(name_, 40),
             SafetensorsLimits::kNameBytes);
    }
    if (name_.find('\0') != std::string::npos) {
      refuse(path_, "tensor name {} holds a NUL", in_quotes(name_));
    }
    if (name_ != "__metadata__" && i64(header_.entries.size()) >= SafetensorsLimits::kTensors) {
      refuse(path_, "more than {} tensors", SafetensorsLimits::kTensors);
    }
  }

  void start_field(const std::string& key) {
    if (key == "dtype") {
      field_ = kDtype;
    } else if (key == "shape") {
      field_ = kShape;
    } else if (key == "data_offsets") {
      field_ = kOffsets;
    } else {
      refuse(path_, "tensor {}: unknown field {}", in_quotes(name_), in_quotes(key, 40));
    }
    if ((seen_ & field_) != 0) {
      refuse(path_, "tensor {}: field {} appears twice", in_quotes(name_), in_quotes(key, 40));
    }
    seen_ |= field_;
  }

  void finish_tensor() {
    if (seen_ != (kDtype | kShape | kOffsets)) {
      refuse(path_, "tensor {}: {} is missing", in_quotes(name_),
             (seen_ & kDtype) == 0   ? "dtype"
             : (seen_ & kShape) == 0 ? "shape"
                                     : "data_offsets");
    }
    try {
      tensor_.shape = Shape(std::span<const i64>(dims_.data(), rank_));
    } catch (const Error& e) {
      refuse(path_, "tensor {}: {}", in_quotes(name_), e.what());
    }
    // A Shape has at most 2^59 elements, so this cannot wrap.
    const i64 bytes = tensor_.shape.numel() * size_of(tensor_.type);
    const auto [begin, end] = offsets_;
    if (begin > end) {
      refuse(path_, "tensor {}: data_offsets [{}, {}] end before they begin", in_quotes(name_),
             begin, end);
    }
    if (end > data_bytes_) {
      refuse(path_,
             "tensor {}: its bytes end at {}, the file has {} bytes of data: it was cut short, or "
             "the header is wrong",
             in_quotes(name_), end, data_bytes_);
    }
    if (end - begin != bytes) {
      refuse(path_, "tensor {}: {} {} needs {} bytes, data_offsets [{}, {}] give {}",
             in_quotes(name_), name_of(tensor_.type), tensor_.shape, bytes, begin, end,
             end - begin);
    }
    tensor_.name = name_;
    tensor_.offset = begin;
    tensor_.bytes = bytes;
    header_.entries.push_back(std::move(tensor_));
  }

  const std::string& path_;
  i64 data_bytes_;
  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  std::string name_;  // of the tensor at hand
  bool has_metadata_ = false;
  SafetensorsEntry tensor_;
  unsigned seen_ = 0;
  Field field_ = kDtype;
  std::array<i64, Shape::kMaxRank> dims_{};
  std::size_t rank_ = 0;
  std::array<i64, 2> offsets_{};
  std::size_t list_size_ = 0;  // numbers read of the list at hand
};

i64 header_length(const InputFile& file) {
  if (file.size() < 8) {
    refuse(file.path(), "{} bytes, the header's length alone takes 8", file.size());
  }
  std::array<std::byte, 8> raw{};
  file.read(0, raw);
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) {
    length = length << 8 | std::uint64_t(raw[i]);
  }
  const i64 most = std::min(SafetensorsLimits::kHeaderBytes, file.size() - 8);
  if (length > std::uint64_t(most)) {
    refuse(file.path(), "the header claims {} bytes; a file of {} bytes can hold at most {}",
           length, file.size(), most);
  }
  if (length == 0) {
    refuse(file.path(), "the header is empty");
  }
  return i64(length);
}

// Sorted by offset, the tensors must touch each other and both ends of the data.
void check_cover(const std::string& path, const std::vector<SafetensorsEntry>& entries,
                 i64 data_bytes) {
  i64 end = 0;
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset < end) {
      refuse(path, "tensors {} and {} overlap", in_quotes(before->name), in_quotes(entry.name));
    }
    if (entry.offset > end) {
      refuse(path, "{} bytes before tensor {} belong to no tensor", entry.offset - end,
             in_quotes(entry.name));
    }
    end = entry.offset + entry.bytes;
    before = &entry;
  }
  if (end != data_bytes) {
    refuse(path, "the tensors end after {} bytes of data, the file has {}", end, data_bytes);
  }
}

template <class T, class Name>
void check_unique(const std::string& path, const std::vector<T>& sorted, const char* what,
                  Name name) {
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end(),
                                        [&](const T& a, const T& b) { return name(a) == name(b); });
  if (twice != sorted.end()) {
    refuse(path, "{} {} appears twice", what, in_quotes(name(*twice)));
  }
}

}  // namespace

const char* name_of(StoredType type) {
  return kTypeNames[std::size_t(type)];
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  const i64 length = header_length(file);
  const i64 data_bytes = file.size() - 8 - length;
  HeaderStream stream(file, length);
  if (stream.current() != '{') {
    refuse(file.path(), "the header does not begin with '{': not a safetensors file");
  }
  HeaderHandler handler(file.path(), data_bytes);
  Json::sax_parse(HeaderIterator(&stream), HeaderIterator(), &handler);
  SafetensorsHeader header = handler.take();

  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
            });
  header.by_name.resize(header.entries.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0u);
  const auto entry_name = [&](std::uint32_t i) -> const std::string& {
    return header.entries[i].name;
  };
  std::sort(header.by_name.begin(), header.by_name.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entry_name(a) < entry_name(b); });
  check_unique(file.path(), header.by_name, "tensor", entry_name);
  std::sort(header.metadata.begin(), header.metadata.end());
  check_unique(file.path(), header.metadata, "metadata key",
               [](const auto& entry) -> const std::string& { return entry.first; });
  check_cover(file.path(), header.entries, data_bytes);
  // From offsets in the data to offsets in the file.
  for (SafetensorsEntry& entry : header.entries) {
    entry.offset += 8 + length;
  }
  return header;
}

}  // namespace penstock::io
