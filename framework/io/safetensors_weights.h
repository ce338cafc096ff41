// A model's tensors in files: the public layout and names on disk, whatever memory holds, and a
// report of what was loaded.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "framework/core/tensor.h"
#include "framework/io/safetensors.h"

namespace penstock::io {

// How a file's layout differs from memory's.
enum class Layout : std::uint8_t {
  kSame,
  kChannelsLast,  // memory [K, spatial..., C] (images, KRSC weights), file [K, C, spatial...]
  kTransposed,    // memory [out, in], file [in, out]: GPT-2's linear weights
};

// The shape that files carry for `memory`. Throws Error when the layout does not fit its rank.
Shape file_shape(const Shape& memory, Layout layout);
// Rearranges a whole tensor of `memory` shape in host memory; `from` and `to` do not overlap.
struct Rearranged {
  Shape memory;
  i64 element_bytes = 4;
  Layout layout = Layout::kSame;
};
void to_file_layout(const Rearranged& how, const void* from, void* to);
void from_file_layout(const Rearranged& how, const void* from, void* to);

// One tensor under its public name.
struct NamedTensor {
  std::string name;
  Tensor tensor;
  Layout layout = Layout::kSame;
};

struct LoadOptions {
  // Loads what fits and reports the rest, instead of refusing.
  bool partial = false;
  // Floats of another width are converted; otherwise they count as mismatched.
  bool convert = true;
  // Removed from the front of the file's names: "module.", "transformer.".
  std::string strip_prefix;
  // Names in the file that nobody needs to want (a causal mask, a batch counter).
  std::function<bool(std::string_view)> ignorable;
};

struct LoadReport {
  std::string path;
  i64 loaded = 0;
  i64 wanted = 0;
  std::vector<std::string> missing;      // wanted, not in the file
  std::vector<std::string> unexpected;   // in the file, not wanted
  std::vector<std::string> mismatched;   // "fc.weight: expected f32 [10, 84], found F32 [11, 84]"
  std::map<std::string, i64> converted;  // "F16 to f32" -> tensors
  i64 overflowed = 0;                    // elements that became infinite in a conversion
  // "model.safetensors: 62 of 62 tensors loaded, 62 converted from F16 to f32".
  std::string text() const;
};

// Fills every tensor of `tensors` from the file, on whichever device it lives. Names are compared
// before anything is written: a refused file changes nothing. Throws DataError that lists every
// missing, unexpected and mismatched name.
LoadReport load_weights(const SafetensorsFile& file, std::span<const NamedTensor> tensors,
                        const LoadOptions& options = {});

// Writes the tensors in the public layout to `path`, which holds the old file or the new one.
void save_weights(const std::string& path, std::span<const NamedTensor> tensors,
                  const Metadata& metadata = {});

}  // namespace penstock::io
