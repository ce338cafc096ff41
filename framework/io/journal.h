// Append-only logs of JSON lines (metrics.jsonl, decisions.jsonl): one complete line a write,
// marked sessions, and no lost run for a full disk.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "framework/io/files.h"

namespace penstock::io {

class Journal {
 public:
  struct Options {
    std::string path;
    i64 ring_bytes = i64{64} << 20;  // lines kept while they cannot be written
    double retry_seconds = 1;        // between tries then
  };
  // Where a session starts: the first one at step 0, later ones where a checkpoint was resumed.
  struct Session {
    std::string run;
    i64 step = 0;
    i64 position = 0;
  };
  // Opens or makes the file. A torn last line, left by a process that was killed, is cut off; the
  // session's line says how many bytes that were. Throws StorageError when it cannot be opened.
  Journal(Options options, const Session& session);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Appends one JSON object, without a newline in it. Never throws for the file system's sake: what
  // cannot be written waits in a ring and is written later; what the ring cannot hold is counted in
  // a line of its own, {"gap": {...}}, at its place. Safe from any thread.
  void write(std::string_view object);
  // Tries again to write what waits, and makes what is written durable. True when nothing waits.
  bool sync();

  i64 waiting() const;  // lines
  i64 lost() const;     // lines that a gap stands for
  const std::string& path() const { return options_.path; }

 private:
  void add(std::string line);
  void make_room();
  void drain();
  bool put_front();
  void report_trouble(int error);

  Options options_;
  Descriptor fd_;
  mutable std::mutex mutex_;
  std::deque<std::string> ring_;
  i64 ring_size_ = 0;          // bytes
  std::size_t put_ = 0;        // bytes of the first line that are in the file already
  bool front_is_gap_ = false;  // the first line tells of a gap
  i64 gap_lines_ = 0;          // dropped behind the first line and not yet told
  i64 gap_bytes_ = 0;
  i64 lost_ = 0;
  double last_try_ = -1e300;
  std::string trouble_;  // why the last try failed; empty when it did not
};

struct JournalSession {
  std::string run;
  i64 step = 0;
  i64 position = 0;
};

struct JournalReport {
  i64 lines = 0;       // complete ones, session and gap lines included
  i64 malformed = 0;   // complete lines that are no JSON object
  i64 torn_bytes = 0;  // of a last line without its end
  i64 gap_lines = 0;   // lines that gaps stand for
  std::vector<JournalSession> sessions;
};

// Calls `line` with every complete record of the file in order: JSON objects that are neither
// sessions nor gaps. With `superseded` false, those whose "step" a later session took over (it
// resumed from an earlier checkpoint) are left out, so that steps rise through the whole file.
// Throws StorageError when the file cannot be read; a torn last line is only reported.
struct JournalReading {
  bool superseded = false;
  std::function<void(std::string_view line)> line;
};
JournalReport read_journal(const std::string& path, const JournalReading& reading);

}  // namespace penstock::io
