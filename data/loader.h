// The prefetching loader: one ring of sample slots, filled in place and out of order by workers,
// handed over in order. Its unit is the sample, so batch, workers and depth may change at any time
// and never change what comes, in which order, or how.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sampler.h"

namespace penstock::data {

// What to do with a sample that cannot be read.
struct BadSamples {
  bool replace = false;    // false: the error ends the run
  i64 max_count = 100;     // more than this are an error
  double max_rate = 0.01;  // of the samples delivered, once 1,000 were
};

struct LoaderOptions {
  Sampler sampler{};  // its size is filled in from the data set
  i64 batch = 32;
  int workers = 1;         // 0: the consumer loads by itself
  int depth = 2;           // batches ahead
  int io_concurrency = 1;  // reads in flight, for data sets that need fetching
  int max_workers = 64;
  i64 max_bytes = i64{256} << 20;  // of the ring
  bool pinned = false;
  i64 start = 0;  // absolute position of the run's next sample
  i64 end = -1;   // absolute position behind the last one; negative: endless
  BadSamples bad{};
  double read_limit = 120;  // seconds that reading, or loading, one sample may take
};

// Rows of one field in the ring.
struct Rows {
  const std::byte* data = nullptr;
  i64 count = 0;
};

// Samples as next() hands them over; good until release().
struct Batch {
  std::vector<std::vector<Rows>> fields;  // by field of the data set: at most two spans
  i64 count = 0;
  i64 first = 0;     // the rank's number of the first sample
  i64 position = 0;  // absolute position of the first sample
  i64 epoch = 0;
  i64 targets = 0;  // targets that the loss counts
  bool ends_epoch = false;
  std::vector<i64> ids;  // indices into the data set
};

// Seconds of a wait by what the last-arriving sample was doing.
struct WaitParts {
  double fetch = 0, decode = 0, queueing = 0, scheduling = 0, order = 0;
};

struct LoaderStats {
  i64 samples = 0;             // loaded by workers
  double service_seconds = 0;  // their time, waits for a core included
  double cpu_seconds = 0;      // of it on a CPU
  double delay_seconds = 0;    // of it runnable, waiting for a core; the rest was blocked
  i64 fetched = 0;
  i64 fetched_bytes = 0;
  double fetch_seconds = 0;
  i64 calls = 0;  // of next()
  double wait_seconds = 0;
  WaitParts wait{};
  double low = 0, high = 0;  // fewest and most batches that were ready when next() was called
  i64 bad = 0;
};

// What one thread of the loader is doing, for the watchdog.
struct LoaderActivity {
  std::string stage;  // "read", "decode"
  int worker = -1;
  i64 sample = -1;  // index in the data set
  std::string file;
  double seconds = 0;
};

class Loader {
 public:
  // Throws ConfigError naming the key when a sample is larger than the ring.
  Loader(std::shared_ptr<const Dataset> set, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next samples in order: min(count, what is left of the epoch and of the run,
  // largest_batch()). Blocks. Throws what a sample's load threw, with its position and file, at the
  // batch that holds the sample; StalledError naming the file when a read exceeds its limit. Empty
  // behind the end.
  Batch next(i64 count);
  // The slots of a batch may be filled again. In the order of next().
  void release(const Batch& batch);

  // Samples of this rank until the epoch ends, and until the run ends (-1: endless).
  i64 left_in_epoch() const;
  i64 left() const;
  i64 position() const;
  const Dataset& set() const;

  void set_batch(i64 batch);
  void set_workers(int workers);
  void set_depth(int depth);
  void set_io_concurrency(int readers);
  i64 batch() const;
  int workers() const;
  int depth() const;
  int io_concurrency() const;
  i64 slots() const;
  // The largest batch the ring serves while another one is filled.
  i64 largest_batch() const { return slots() / 2; }
  i64 ring_bytes() const;
  bool pinned() const;

  // Back (or forward) to a position: the same samples are served again, and bad ones behind it are
  // counted anew. Every batch must have been released.
  void rewind(i64 position);
  // Since the last call.
  LoaderStats take_stats();
  // Indices of samples that were replaced so far, in order of delivery.
  std::vector<i64> bad_samples() const;
  std::vector<LoaderActivity> activities() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace penstock::data
