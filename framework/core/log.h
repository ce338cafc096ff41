// The process's log: one line a message on stderr (and in the run's log file), thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "framework/core/format.h"

namespace penstock::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// Sets the lowest level that is written.
void set_level(Level level);
// Prefixes every line, e.g. "rank 3"; empty for none.
void set_prefix(std::string_view prefix);
// Also appends every line to this file; an empty path stops that. Never throws: a full disk loses
// log lines, not a run.
void set_file(const std::string& path);
// Called before a line is written to stderr, so that a progress line can be cleared first, and
// after it, so that it can be drawn again. Null for none.
void set_terminal_hooks(void (*before)(), void (*after)());

void write(Level level, std::string_view message);

template <class... Args>
void debug(std::string_view text, const Args&... args) {
  write(Level::kDebug, format(text, args...));
}
template <class... Args>
void info(std::string_view text, const Args&... args) {
  write(Level::kInfo, format(text, args...));
}
template <class... Args>
void warning(std::string_view text, const Args&... args) {
  write(Level::kWarning, format(text, args...));
}
template <class... Args>
void error(std::string_view text, const Args&... args) {
  write(Level::kError, format(text, args...));
}
// Writes the warning the first time that `key` is seen in this process, never again.
void warn_once(std::string_view key, std::string_view message);

}  // namespace penstock::log
