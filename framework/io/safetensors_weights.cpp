#include "framework/io/safetensors_weights.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace penstock::io {
namespace {

// Names shown of each kind in an error; the rest is counted.
constexpr std::size_t kListed = 200;
constexpr i64 kStagedBytes = i64{16} << 20;

// [outer, rows, columns] -> [outer, columns, rows].
template <class T>
void transpose(const T* from, T* to, i64 outer, i64 rows, i64 columns) {
  for (i64 o = 0; o < outer; ++o) {
    for (i64 c = 0; c < columns; ++c) {
      for (i64 r = 0; r < rows; ++r) {
        to[(o * columns + c) * rows + r] = from[(o * rows + r) * columns + c];
      }
    }
  }
}

void transpose_any(i64 element_bytes, const void* from, void* to, i64 outer, i64 rows,
                   i64 columns) {
  const auto as = [&]<class T>(T) {
    transpose(static_cast<const T*>(from), static_cast<T*>(to), outer, rows, columns);
  };
  switch (element_bytes) {
    case 1: return as(std::uint8_t{});
    case 2: return as(std::uint16_t{});
    case 4: return as(std::uint32_t{});
    default: return as(std::uint64_t{});
  }
}

// Memory and file are both [outer, a, b], with a and b exchanged.
struct Planes {
  i64 outer, rows, columns;  // of memory
};
Planes planes_of(const Shape& memory, Layout layout) {
  if (layout == Layout::kTransposed) {
    return {1, memory[0], memory[1]};
  }
  return {memory[0], memory.numel(1, memory.rank() - 1), memory[-1]};
}

// A name out of a file, without the quotes.
std::string escaped(std::string_view name) {
  const std::string text = in_quotes(name);
  return text.substr(1, text.rfind('"') - 1);
}

void append_list(std::string& text, const char* title, const std::vector<std::string>& names) {
  if (names.empty()) {
    return;
  }
  text += format("\n  {} ({}):", title, names.size());
  for (std::size_t i = 0; i < std::min(names.size(), kListed); ++i) {
    text += "\n    " + names[i];
  }
  if (names.size() > kListed) {
    text += format("\n    and {} more", names.size() - kListed);
  }
}

// The names of a file that belong together by a prefix nobody asked for: "module." of a parallel
// wrapper. Empty when stripping it would not help.
std::string helpful_prefix(const LoadReport& report) {
  if (report.missing.empty() || report.unexpected.empty()) {
    return "";
  }
  const std::string& longer = report.unexpected.front();
  for (const std::string& name : report.missing) {
    if (longer.size() > name.size() && longer.ends_with(name)) {
      return longer.substr(0, longer.size() - name.size());
    }
  }
  return "";
}

[[noreturn]] void refuse(const LoadReport& report) {
  std::string text = format("load {}: the file does not hold this model's tensors ({} of {} match)",
                            report.path, report.loaded, report.wanted);
  append_list(text, "missing", report.missing);
  append_list(text, "unexpected", report.unexpected);
  append_list(text, "mismatched", report.mismatched);
  if (const std::string prefix = helpful_prefix(report); !prefix.empty()) {
    text += format("\n  the file's names begin with {}: strip that prefix to load it",
                   in_quotes(prefix, 40));
  }
  throw DataError(text);
}

struct Match {
  const NamedTensor* tensor;
  const SafetensorsEntry* entry;
};

// Compares names, shapes and types; fills everything of the report but the conversions.
std::vector<Match> match(const SafetensorsFile& file, std::span<const NamedTensor> tensors,
                         const LoadOptions& options, LoadReport& report) {
  std::vector<Match> matches;
  std::set<std::string_view> wanted;
  for (const NamedTensor& item : tensors) {
    check(wanted.insert(item.name).second, "load {}: tensor {} is wanted twice", file.path(),
          in_quotes(item.name));
    const SafetensorsEntry* entry = file.find(options.strip_prefix + item.name);
    if (entry == nullptr) {
      report.missing.push_back(item.name);
      continue;
    }
    const Shape shape = file_shape(item.tensor.shape(), item.layout);
    const std::optional<DType> stored = dtype_of_stored(entry->type);
    const bool same_type = stored == item.tensor.dtype();
    const bool converts =
        options.convert && stored && is_float(*stored) && is_float(item.tensor.dtype());
    if (entry->shape != shape || !(same_type || converts)) {
      report.mismatched.push_back(format("{}: expected {} {}, found {} {}", item.name,
                                         item.tensor.dtype(), shape, name_of(entry->type),
                                         entry->shape));
      continue;
    }
    matches.push_back({&item, entry});
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    std::string_view name = entry.name;
    const bool prefixed = name.starts_with(options.strip_prefix);
    if (prefixed) {
      name.remove_prefix(options.strip_prefix.size());
    }
    const bool known = prefixed && wanted.contains(name);
    if (!known && !(options.ignorable && options.ignorable(name))) {
      report.unexpected.push_back(escaped(name));
    }
  }
  report.wanted = i64(tensors.size());
  report.loaded = i64(matches.size());
  return matches;
}

// Reads one tensor; device memory and changed layouts go through a host buffer.
Conversion fill(const SafetensorsFile& file, const Match& match) {
  const Tensor& tensor = match.tensor->tensor;
  const DType dtype = tensor.dtype();
  const i64 numel = tensor.numel();
  const i64 width = size_of(dtype);
  check(!tensor.device().is_meta(), "load {}: tensor {} lives on meta, which holds no values",
        file.path(), in_quotes(match.tensor->name));
  if (match.tensor->layout == Layout::kSame && tensor.device().is_cpu()) {
    return file.read(*match.entry, 0, numel, dtype, tensor.raw());
  }
  std::vector<std::byte> staged;
  if (match.tensor->layout != Layout::kSame) {
    staged.resize(std::size_t(2 * numel * width));
    std::byte* rearranged = staged.data() + numel * width;
    const Conversion conversion = file.read(*match.entry, 0, numel, dtype, staged.data());
    from_file_layout(
        {.memory = tensor.shape(), .element_bytes = width, .layout = match.tensor->layout},
        staged.data(), rearranged);
    tensor.load_host(rearranged);
    return conversion;
  }
  Conversion sum;
  const i64 most = std::min(numel, std::max<i64>(1, kStagedBytes / width));
  staged.resize(std::size_t(most * width));
  for (i64 done = 0; done < numel;) {
    const i64 now = std::min(most, numel - done);
    const Conversion part = file.read(*match.entry, done, now, dtype, staged.data());
    tensor.part(done, {now}).load_host(staged.data());
    sum.elements += part.elements;
    sum.overflowed += part.overflowed;
    done += now;
  }
  return sum;
}

}  // namespace

Shape file_shape(const Shape& memory, Layout layout) {
  if (layout == Layout::kSame) {
    return memory;
  }
  const int rank = memory.rank();
  if (layout == Layout::kTransposed) {
    check(rank == 2, "layout: only a matrix is stored transposed, got shape {}", memory);
    return {memory[1], memory[0]};
  }
  check(rank >= 3, "layout: channels last needs at least 3 dimensions, got shape {}", memory);
  return memory.without(rank - 1).inserted(1, memory[-1]);
}

void to_file_layout(const Rearranged& how, const void* from, void* to) {
  if (how.layout == Layout::kSame) {
    std::memcpy(to, from, std::size_t(how.memory.numel() * how.element_bytes));
    return;
  }
  const Planes p = planes_of(how.memory, how.layout);
  transpose_any(how.element_bytes, from, to, p.outer, p.rows, p.columns);
}

void from_file_layout(const Rearranged& how, const void* from, void* to) {
  if (how.layout == Layout::kSame) {
    std::memcpy(to, from, std::size_t(how.memory.numel() * how.element_bytes));
    return;
  }
  const Planes p = planes_of(how.memory, how.layout);
  transpose_any(how.element_bytes, from, to, p.outer, p.columns, p.rows);
}

std::string LoadReport::text() const {
  std::string out = format("{}: {} of {} tensors loaded", path, loaded, wanted);
  for (const auto& [types, count] : converted) {
    out += format(", {} converted from {}", count, types);
  }
  if (overflowed > 0) {
    out += format(" ({} values became infinite)", overflowed);
  }
  const auto count = [&](const std::vector<std::string>& names, const char* what) {
    if (!names.empty()) {
      out += format(", {} {}", names.size(), what);
    }
  };
  count(missing, "missing");
  count(unexpected, "unexpected");
  count(mismatched, "mismatched");
  return out;
}

LoadReport load_weights(const SafetensorsFile& file, std::span<const NamedTensor> tensors,
                        const LoadOptions& options) {
  LoadReport report;
  report.path = file.path();
  const std::vector<Match> matches = match(file, tensors, options, report);
  const bool complete =
      report.missing.empty() && report.unexpected.empty() && report.mismatched.empty();
  if (!complete && !options.partial) {
    refuse(report);
  }
  for (const Match& m : matches) {
    const Conversion conversion = fill(file, m);
    if (conversion.elements > 0) {
      ++report.converted[format("{} to {}", name_of(m.entry->type), m.tensor->tensor.dtype())];
      report.overflowed += conversion.overflowed;
    }
  }
  return report;
}

void save_weights(const std::string& path, std::span<const NamedTensor> tensors,
                  const Metadata& metadata) {
  std::vector<SafetensorsHeaderItem> items;
  items.reserve(tensors.size());
  i64 bytes = 0;
  for (const NamedTensor& item : tensors) {
    items.push_back({.name = item.name,
                     .dtype = item.tensor.dtype(),
                     .shape = file_shape(item.tensor.shape(), item.layout)});
    bytes += item.tensor.bytes();
  }
  ReplacedFile file(path, bytes);
  SafetensorsWriter writer(file.out(), items, metadata);
  std::vector<std::byte> host;
  std::vector<std::byte> rearranged;
  for (const std::size_t i : writer.order()) {
    const Tensor& tensor = tensors[i].tensor;
    host.resize(std::size_t(tensor.bytes()));
    tensor.store_host(host.data());
    if (tensors[i].layout == Layout::kSame) {
      writer.append(host);
      continue;
    }
    rearranged.resize(host.size());
    to_file_layout({.memory = tensor.shape(),
                    .element_bytes = size_of(tensor.dtype()),
                    .layout = tensors[i].layout},
                   host.data(), rearranged.data());
    writer.append(rearranged);
  }
  writer.finish();
  file.commit();
}

}  // namespace penstock::io
