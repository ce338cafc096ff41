// Reading the table of a tar file, never extracting it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "framework/core/function_ref.h"
#include "framework/core/target.h"

namespace penstock::data::image {

struct TarMember {
  std::string name;  // a label: never used as a path
  i64 offset = 0;    // of its bytes in the tar file
  i64 size = 0;
};

struct TarSource {
  std::string_view name;  // for messages
  i64 bytes = 0;
  // Fills `to` with the bytes at `offset`; only asked for what lies inside.
  FunctionRef<void(i64 offset, std::span<std::byte> to)> read;
};

// Calls `member` for every regular file, in order. Understands ustar, pax (path and size), and GNU
// long names and large sizes. Folders are passed over. Throws DataError naming the tar file and the
// member: a damaged header, links, devices, pipes and sparse files, a name or extended header over
// its cap, a member that reaches past the end, a missing end mark (the file is cut).
void read_tar(const TarSource& source, FunctionRef<void(const TarMember&)> member);

}  // namespace penstock::data::image
