// What the preloaded fault shim is told and tells, in a file that both sides map: it outlives a
// process that was killed.
#pragma once

#include <cstdint>

namespace penstock::faults {

// Environment: FAULT_REPORT the file, FAULT_ROOT the folder whose files count, FAULT_LOG a file
// that is written anew with what was done to them.
enum class Action : std::int32_t {
  kNone,        // count only
  kFail,        // with `error`; the call does nothing
  kShort,       // a write writes half and says so; other calls go through and do not count
  kKill,        // SIGKILL before the call
  kTearAndKill  // half of a write, then SIGKILL; other calls as kKill
};

struct Report {
  Action action;
  std::int32_t error;   // errno of kFail
  std::int64_t at;      // which call, from 1
  std::int64_t last;    // up to which one kFail fails them
  std::int64_t writes;  // 1: only calls that need room count (write, pwrite, create, mkdir, rename)
  std::int64_t calls;   // counted so far
  std::int64_t fired;   // acted on
  char name[16];        // of the call at which it fired first
};

// An operation that succeeded, in the log: this, then the path, then what was written or the other
// path.
enum class Done : std::int32_t {
  kCreate,
  kWrite,
  kTruncate,
  kSync,
  kRename,
  kUnlink,
  kMkdir,
  kRmdir
};
struct Entry {
  Done done;
  std::int32_t path;   // bytes
  std::int64_t extra;  // bytes; of kTruncate the new size, and nothing follows
};

}  // namespace penstock::faults
