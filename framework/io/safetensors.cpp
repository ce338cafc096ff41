#include "framework/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "framework/io/safetensors_header.h"

namespace penstock::io {
namespace {

template <class T>
double widen(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return double(float(value));
}
template <>
double widen<double>(const std::byte* from) {
  double value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
T narrow(double value) {
  return T(float(value));
}
template <>
double narrow<double>(double value) {
  return value;
}

// Elements of From at `from` into elements of To at `to`, which may be unaligned.
template <class From, class To>
i64 convert(const std::byte* from, std::byte* to, i64 count) {
  i64 overflowed = 0;
  for (i64 i = 0; i < count; ++i) {
    const double wide = widen<From>(from + i * i64(sizeof(From)));
    const To value = narrow<To>(wide);
    std::memcpy(to + i * i64(sizeof(To)), &value, sizeof(To));
    overflowed += std::isfinite(wide) && !std::isfinite(double(float(value))) ? 1 : 0;
  }
  return overflowed;
}

void check_utf8(const std::string& text, const char* what) {
  try {
    (void)nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(format("safetensors: {} {} is not valid UTF-8", what, in_quotes(text)));
  }
}

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump();
}

void check_names(std::span<const SafetensorsHeaderItem> items, const Metadata& metadata) {
  std::set<std::string_view> seen;
  for (const SafetensorsHeaderItem& item : items) {
    check(!item.name.empty() && i64(item.name.size()) <= SafetensorsLimits::kNameBytes,
          "safetensors: tensor name {} is empty or longer than {} bytes", in_quotes(item.name),
          SafetensorsLimits::kNameBytes);
    check(item.name.find('\0') == std::string::npos && item.name != "__metadata__",
          "safetensors: {} cannot name a tensor", in_quotes(item.name));
    check_utf8(item.name, "tensor name");
    check(seen.insert(item.name).second, "safetensors: tensor {} is given twice",
          in_quotes(item.name));
  }
  seen.clear();
  for (const auto& [key, value] : metadata) {
    check_utf8(key, "metadata key");
    check_utf8(value, "metadata value");
    check(i64(value.size()) <= SafetensorsLimits::kStringBytes / 8,
          "safetensors: metadata value {} is longer than {} bytes", in_quotes(key),
          SafetensorsLimits::kStringBytes / 8);
    check(seen.insert(key).second, "safetensors: metadata key {} is given twice", in_quotes(key));
  }
}

std::string header_text(std::span<const SafetensorsHeaderItem> items,
                        std::span<const std::size_t> order, const Metadata& metadata) {
  std::string text = "{";
  const auto separate = [&] {
    if (text.size() > 1) {
      text += ',';
    }
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      text +=
          format("{}{}:{}", text.back() == '{' ? "" : ",", json_string(key), json_string(value));
    }
    text += '}';
  }
  i64 offset = 0;
  for (const std::size_t i : order) {
    const SafetensorsHeaderItem& item = items[i];
    separate();
    text += format("{}:{{\"dtype\":\"{}\",\"shape\":[", json_string(item.name),
                   name_of(stored_type_of(item.dtype)));
    for (int axis = 0; axis < item.shape.rank(); ++axis) {
      text += format("{}{}", axis == 0 ? "" : ",", item.shape[axis]);
    }
    const i64 end = offset + item.shape.numel() * size_of(item.dtype);
    text += format("],\"data_offsets\":[{},{}]}}", offset, end);
    offset = end;
  }
  text += '}';
  // Spaces after the JSON align the first tensor.
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

i64 size_of(StoredType type) {
  switch (type) {
    case StoredType::kBool:
    case StoredType::kU8:
    case StoredType::kI8:
    case StoredType::kF8E5M2:
    case StoredType::kF8E4M3: return 1;
    case StoredType::kI16:
    case StoredType::kU16:
    case StoredType::kF16:
    case StoredType::kBf16: return 2;
    case StoredType::kI32:
    case StoredType::kU32:
    case StoredType::kF32: return 4;
    case StoredType::kF64:
    case StoredType::kI64:
    case StoredType::kU64: return 8;
  }
  return 0;
}

std::optional<DType> dtype_of_stored(StoredType type) {
  switch (type) {
    case StoredType::kBool: return DType::boolean;
    case StoredType::kU8: return DType::u8;
    case StoredType::kF16: return DType::f16;
    case StoredType::kBf16: return DType::bf16;
    case StoredType::kI32: return DType::i32;
    case StoredType::kF32: return DType::f32;
    case StoredType::kF64: return DType::f64;
    case StoredType::kI64: return DType::i64;
    default: return std::nullopt;
  }
}

StoredType stored_type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return StoredType::kF64;
    case DType::f32: return StoredType::kF32;
    case DType::f16: return StoredType::kF16;
    case DType::bf16: return StoredType::kBf16;
    case DType::i64: return StoredType::kI64;
    case DType::i32: return StoredType::kI32;
    case DType::u8: return StoredType::kU8;
    case DType::boolean: return StoredType::kBool;
  }
  fail("safetensors: not a known element type");
}

// ---- reading

SafetensorsFile::SafetensorsFile(const std::string& path, Links links) : file_(path, links) {
  SafetensorsHeader header = read_safetensors_header(file_);
  entries_ = std::move(header.entries);
  by_name_ = std::move(header.by_name);
  metadata_ = std::move(header.metadata);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](std::uint32_t i, std::string_view wanted) { return entries_[i].name < wanted; });
  return at != by_name_.end() && entries_[*at].name == name ? &entries_[*at] : nullptr;
}

std::string_view SafetensorsFile::metadata(std::string_view key) const {
  for (const auto& [name, value] : metadata_) {
    if (name == key) {
      return value;
    }
  }
  return {};
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, i64 begin,
                                 std::span<std::byte> to) const {
  check(begin >= 0 && begin <= entry.bytes && i64(to.size()) <= entry.bytes - begin,
        "safetensors {}: tensor {} has {} bytes, asked for {} from {}", path(),
        in_quotes(entry.name), entry.bytes, to.size(), begin);
  file_.read(entry.offset + begin, to);
}

Conversion SafetensorsFile::read(const SafetensorsEntry& entry, i64 begin, i64 count, DType dtype,
                                 void* to) const {
  auto* out = static_cast<std::byte*>(to);
  const std::optional<DType> stored = dtype_of_stored(entry.type);
  const i64 width = size_of(entry.type);
  if (stored == dtype) {
    const std::span<std::byte> bytes(out, std::size_t(count * width));
    read_bytes(entry, begin * width, bytes);
    const bool truths =
        dtype != DType::boolean ||
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b <= std::byte{1}; });
    if (!truths) {
      throw DataError(
          format("safetensors {}: tensor {} is BOOL and holds a byte other than 0 and 1", path(),
                 in_quotes(entry.name)));
    }
    return {};
  }
  if (!stored || !is_float(*stored) || !is_float(dtype)) {
    throw DataError(format("safetensors {}: tensor {} is {}, which cannot be read as {}", path(),
                           in_quotes(entry.name), name_of(entry.type), dtype));
  }
  Conversion conversion{.elements = count};
  std::array<std::byte, 65536> piece;
  const i64 most = i64(piece.size()) / width;
  for (i64 done = 0; done < count;) {
    const i64 now = std::min(most, count - done);
    read_bytes(entry, (begin + done) * width, std::span(piece).first(std::size_t(now * width)));
    visit_float(*stored, "safetensors", [&]<class From>() {
      visit_float(dtype, "safetensors", [&]<class To>() {
        conversion.overflowed += convert<From, To>(piece.data(), out + done * i64(sizeof(To)), now);
      });
    });
    done += now;
  }
  return conversion;
}

// ---- writing

SafetensorsWriter::SafetensorsWriter(OutputFile& out, std::span<const SafetensorsHeaderItem> items,
                                     const Metadata& metadata)
    : out_(out) {
  check_names(items, metadata);
  order_.resize(items.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    return size_of(items[a].dtype) > size_of(items[b].dtype);
  });
  for (const SafetensorsHeaderItem& item : items) {
    tensor_bytes_ += item.shape.numel() * size_of(item.dtype);
  }
  const std::string text = header_text(items, order_, metadata);
  check(i64(items.size()) <= SafetensorsLimits::kTensors &&
            i64(text.size()) <= SafetensorsLimits::kHeaderBytes,
        "safetensors: {} tensors with a header of {} bytes are too many for {}", items.size(),
        text.size(), out.path());
  header_bytes_ = 8 + i64(text.size());
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = std::byte(std::uint64_t(text.size()) >> (8 * i) & 255);
  }
  out.write(length);
  out.write(text);
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  check(i64(bytes.size()) <= tensor_bytes_ - written_,
        "safetensors {}: {} bytes of tensors announced, more were given", out_.path(),
        tensor_bytes_);
  out_.write(bytes);
  written_ += i64(bytes.size());
}

void SafetensorsWriter::finish() const {
  check(written_ == tensor_bytes_, "safetensors {}: {} bytes of tensors announced, {} given",
        out_.path(), tensor_bytes_, written_);
}

void write_safetensors(OutputFile& out, std::span<const HostTensor> tensors,
                       const Metadata& metadata) {
  std::vector<SafetensorsHeaderItem> items;
  items.reserve(tensors.size());
  for (const HostTensor& tensor : tensors) {
    items.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  SafetensorsWriter writer(out, items, metadata);
  for (const std::size_t i : writer.order()) {
    const HostTensor& tensor = tensors[i];
    const i64 bytes = tensor.shape.numel() * size_of(tensor.dtype);
    writer.append({static_cast<const std::byte*>(tensor.data), std::size_t(bytes)});
  }
  writer.finish();
}

}  // namespace penstock::io
