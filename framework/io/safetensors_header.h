// The JSON header of a safetensors file: everything in it is a claim of whoever made the file.
#pragma once

#include <vector>

#include "framework/io/safetensors.h"

namespace penstock::io {

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // sorted by offset
  std::vector<std::uint32_t> by_name;     // indices into entries
  Metadata metadata;
};

// Reads and checks the header of an open file, a piece at a time: memory grows with the number of
// tensors, not with what the header's length claims. Throws DataError naming file and tensor.
SafetensorsHeader read_safetensors_header(const InputFile& file);

}  // namespace penstock::io
