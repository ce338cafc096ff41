// Small files written whole and read under a cap.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "framework/core/target.h"

namespace penstock::measure {

// Replaces `path` by `text`: a new file beside it, then a rename, so that a reader sees the old
// text or the new one. Throws StorageError with the file and the reason; nothing is left behind.
void write_whole_file(const std::string& path, std::string_view text);

// The text of a regular file of at most `cap` bytes; none when there is no such file. Throws
// DataError naming the file when it is something else, larger or unreadable.
std::optional<std::string> read_whole_file(const std::string& path, i64 cap);

// Makes a folder and its parents; true when it is there afterwards.
bool make_folders(const std::string& path);

}  // namespace penstock::measure
