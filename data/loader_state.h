// Inside of the loader: the ring, its workers and its readers. Private to data/loader*.cpp.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/host_buffer.h"
#include "data/loader.h"

namespace penstock::data {

// Samples that are handed to a worker at once when each is cheap: few enough to spread over
// workers, many enough to hide what handing them out costs.
inline constexpr i64 kChunk = 128;
// Replacements that one bad sample may take before it is an error.
inline constexpr int kReplacements = 32;
inline constexpr std::size_t kMaxFields = 16;
inline constexpr int kMaxReaders = 1024;

double loader_seconds();     // monotonic
double loader_thread_cpu();  // of the calling thread

// How long a thread was runnable without running, from the kernel's own account; 0 where it keeps
// none.
class RunDelay {
 public:
  explicit RunDelay(bool wanted);
  ~RunDelay();
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;
  double seconds() const;

 private:
  int fd_ = -1;
};

// When the stages of one sample began and ended, for the split of waits.
struct Stamp {
  double fetch_begin = 0, fetch_end = 0, load_begin = 0, load_end = 0;
  double delay = 0;  // of the load: runnable, not running
};

struct BadSample {
  i64 index = 0;
  std::string why;
};

// Shared with its threads, so that a read that hangs for good may outlive the loader.
struct Loader::State : std::enable_shared_from_this<Loader::State> {
  std::shared_ptr<const Dataset> set;
  LoaderOptions options;
  Sampler sampler;
  std::vector<i64> field_bytes;
  std::vector<i64> field_offset;  // of each field's array in the buffer
  i64 slots = 0;                  // that fit into the buffer
  std::unique_ptr<HostBuffer> buffer;
  bool needs_fetch = false;
  bool cheap = false;
  i64 end_n = -1;  // behind the rank's last sample; -1: endless

  // The ring goes round in the first `extent` slots only, as many as batch and depth have asked for
  // so far: memory that stays in caches, and that is never touched when it is never needed.
  i64 extent = 0;
  i64 base = 0;  // the sample that stands in slot 0
  // After growing: samples below `fence` still lie where they were, so nothing may be placed from
  // `fence_end` on before they are released.
  i64 fence = 0;
  i64 fence_end = 0;

  // By slot. `ready` holds n + 1 of the sample that fills it.
  std::vector<std::atomic<i64>> ready;
  std::vector<i64> targets;
  std::vector<i64> ids;
  std::vector<Stamp> stamps;
  std::vector<FetchBuffer> raw;  // with needs_fetch
  std::vector<i64> raw_size;     // as it was read
  std::vector<std::exception_ptr> fetch_errors;
  std::vector<FetchBuffer> spare;  // buffers that hold nothing

  mutable std::mutex mutex;
  std::condition_variable arrived;  // the consumer waits here
  std::condition_variable quiet;    // rewind and the destructor wait here
  i64 head = 0;                     // next to be handed over
  i64 released = 0;                 // slots below are free
  i64 claimed = 0;                  // next to be loaded, without needs_fetch
  i64 next_read = 0;                // next to be read
  std::vector<i64> read;            // a heap: fetched, not yet loaded, the earliest first
  i64 fetched_ahead = 0;            // being read, or read and not yet loaded
  i64 raw_bytes = 0;                // of them, those read
  i64 contiguous = 0;               // ready without a gap, as far as somebody has looked
  i64 wanted = 0;                   // the consumer waits for everything below
  bool paused = false;
  bool stopping = false;
  std::map<i64, std::exception_ptr> errors;        // by n
  std::map<i64, std::vector<BadSample>> replaced;  // by n
  std::vector<std::pair<i64, i64>> bad;            // (n, index) as delivered
  i64 delivered = 0;
  LoaderStats stats;

  // What a thread is doing; n < 0: nothing.
  struct Busy {
    i64 n = -1;
    double since = 0;
  };
  int tokens = 0;    // worker tokens that exist
  int starting = 0;  // of them, not running yet
  std::vector<int> free_tokens;
  std::vector<Busy> loading;  // by token
  Busy inlined;               // the consumer, when it loads by itself
  struct Reader {
    Busy busy;
    bool idle = false;
    std::condition_variable go;
    std::thread thread;
  };
  std::deque<Reader> readers;  // elements never move
  int live_readers = 0;
  struct Arena;                                // hides oneTBB
  std::vector<std::shared_ptr<Arena>> arenas;  // used so far, by number of places
  Arena* arena = nullptr;                      // where tokens start now

  State();
  ~State();
  void choose_arena();
  // Gives memory, data set and arena back, when no thread is left.
  void close();

  // ---- the ring; all under the mutex but slot arithmetic ----
  i64 window() const;
  // Behind the last sample that may be in flight now.
  i64 limit() const;
  i64 slot_of(i64 n) const { return (n - base) % extent; }
  i64 after(i64 slot) const { return slot + 1 == extent ? 0 : slot + 1; }
  std::byte* row(std::size_t field, i64 slot) const {
    return buffer->data() + field_offset[field] + slot * field_bytes[field];
  }
  i64 left_in_epoch() const;
  // How many slots `count` samples of the next call need, held ones and those ahead included.
  i64 needed(i64 count) const;
  void set_extent(i64 wanted_slots);
  // Grows the extent; samples that are loaded but not handed over are loaded again.
  void grow(std::unique_lock<std::mutex>& lock, i64 wanted_slots);
  // Everything from `n` on is to be loaded anew.
  void forget_from(i64 n);
  // Advances `contiguous` as far as samples are ready.
  i64 scan(i64 up_to);

  // ---- loading (loader_work.cpp) ----
  SampleKey key_of(i64 n, EpochOrder& order) const;
  std::string place(i64 n, i64 index) const;
  std::exception_ptr named(const std::exception_ptr& error, i64 n, i64 index) const;
  // Takes [from, to) for a token; -1 is the consumer. Under the mutex.
  bool claim(i64& from, i64& to, int token);
  // Loads what was claimed, without the lock. `wake`: the consumer is to be woken, in and out.
  void work(i64 from, i64 to, EpochOrder& order, const RunDelay& delay, int token,
            std::unique_lock<std::mutex>& lock, bool& wake);
  void load(i64 n, EpochOrder& order);
  void load_chunk(i64 from, i64 to, EpochOrder& order);
  void token(int number);
  // Starts tokens and readers for the work that waits. Under the mutex.
  void pump();

  // ---- reading (loader_work.cpp) ----
  i64 read_room() const;
  void reader(Reader& me, int number);
  void start_readers();
  void stop_readers(std::unique_lock<std::mutex>& lock);
  bool reading() const;

  // Stops all work and waits for what runs; under the mutex.
  void pause(std::unique_lock<std::mutex>& lock);
  // A thread that is busy with one sample for longer than the limit.
  bool hangs(const Busy& busy) const;
  void throw_if_something_hangs() const;
  void split_wait(double begin, double end, i64 from, i64 to);
};

}  // namespace penstock::data
