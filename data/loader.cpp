#include "data/loader.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "data/host_buffer.h"
#include "framework/core/check.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"

namespace penstock::data {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double thread_cpu() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Samples handed to a worker at once when each is cheap: few enough to spread over workers, many
// enough to hide what handing them out costs.
constexpr i64 kChunk = 128;
// Replacements that one bad sample may take before it is an error.
constexpr int kReplacements = 32;

// Start-to-end of one stage of one sample, for the split of waits.
struct Stamp {
  double fetch_begin = 0, fetch_end = 0, load_begin = 0, load_end = 0;
};

}  // namespace

// Shared with the threads, so that a reader that hangs for good may outlive the loader.
struct Loader::State : std::enable_shared_from_this<Loader::State> {
  std::shared_ptr<const Dataset> set;
  LoaderOptions options;
  Sampler sampler;
  std::vector<i64> field_bytes;
  std::vector<i64> field_offset;  // of each field's array in the buffer
  i64 slots = 0;
  std::unique_ptr<HostBuffer> buffer;
  bool needs_fetch = false;
  bool cheap = false;
  i64 end_n = -1;  // behind the rank's last sample; -1: endless

  // Per slot. `ready` holds n + 1 of the sample that fills it.
  std::vector<std::atomic<i64>> ready;
  std::vector<std::int32_t> targets;
  std::vector<i64> ids;
  std::vector<Stamp> stamps;
  std::vector<FetchBuffer> raw;        // by slot, with needs_fetch
  std::vector<std::exception_ptr> fetch_errors;

  mutable std::mutex mutex;
  std::condition_variable arrived;     // the consumer waits here
  std::condition_variable read_room;   // readers wait here
  std::condition_variable quiet;       // rewind and the destructor wait here
  i64 head = 0;       // next to be handed over
  i64 released = 0;   // slots below are free
  i64 claimed = 0;    // next to be loaded (or, with needs_fetch, counts only what was taken)
  i64 next_read = 0;  // next to be read
  std::deque<i64> read;  // fetched, not yet loaded
  std::atomic<i64> contiguous{0};  // ready without a gap, as far as the consumer has looked
  i64 wanted = 0;     // the consumer waits for everything below
  int tokens = 0;     // worker tokens running
  bool paused = false;
  bool stopping = false;
  std::map<i64, std::exception_ptr> errors;  // by n
  std::map<i64, std::vector<i64>> replaced;  // by n: the bad indices
  std::vector<i64> bad;
  i64 delivered = 0;
  LoaderStats stats;
  struct Reader {
    i64 n = -1;
    i64 index = -1;
    double since = 0;
  };
  std::vector<Reader> readers;  // by reader thread
  std::vector<Reader> loading;  // by token slot
  std::vector<std::thread> threads;
  int live_readers = 0;
  std::unique_ptr<tbb::global_control> control;
  std::unique_ptr<tbb::task_arena> arena;

  // ---- limits, under the mutex ----

  i64 window() const {
    return std::min(slots, (i64(options.depth) + 1) * options.batch);
  }
  // Behind the last sample that may be in flight now.
  i64 limit() const {
    i64 most = std::min(released + slots, std::max(head, released) + window());
    most = std::max(most, std::min(released + slots, wanted));
    return end_n >= 0 ? std::min(most, end_n) : most;
  }

  i64 slot_of(i64 n) const { return n % slots; }
  std::byte* row(std::size_t field, i64 slot) const {
    return buffer->data() + field_offset[field] + slot * field_bytes[field];
  }
  i64 left_in_epoch() const {
    const i64 position = sampler.position_of(head);
    const i64 border = (sampler.epoch_of(position) + 1) * sampler.size;
    i64 left = sampler.first_at(border) - head;
    return end_n >= 0 ? std::min(left, end_n - head) : left;
  }

  // ---- loading ----

  SampleKey key_of(i64 n, EpochOrder& order) const {
    const i64 position = sampler.position_of(n);
    const i64 epoch = sampler.epoch_of(position);
    if (order.epoch() != epoch) {
      order = sampler.order(epoch);
    }
    return {.index = order.at(position - epoch * sampler.size), .epoch = epoch, .seed = sampler.seed};
  }

  std::string place(i64 n, i64 index) const {
    const std::string file = set->describe(index);
    return format("sample {} at position {}{}", index, sampler.position_of(n),
                  file.empty() ? "" : format(" ({})", file));
  }

  std::exception_ptr named(std::exception_ptr error, i64 n, i64 index) const {
    try {
      std::rethrow_exception(error);
    } catch (const StalledError&) {
      return error;
    } catch (const Error& e) {
      return std::make_exception_ptr(DataError(format("loader: {}: {}", place(n, index), e.what())));
    } catch (const std::exception& e) {
      return std::make_exception_ptr(Error(format("loader: {}: {}", place(n, index), e.what())));
    }
  }

  // Fills the slot of sample n; the fetch, if any, is done.
  void load(i64 n, EpochOrder& order) {
    const i64 slot = slot_of(n);
    const auto s = std::size_t(slot);
    std::byte* rows[16];
    for (std::size_t f = 0; f < field_bytes.size(); ++f) {
      rows[f] = row(f, slot);
    }
    const std::span<std::byte* const> fields(rows, field_bytes.size());
    SampleKey key = key_of(n, order);
    std::exception_ptr error = needs_fetch ? std::exchange(fetch_errors[s], nullptr) : nullptr;
    std::vector<i64> bad_here;
    for (int attempt = 0;; ++attempt) {
      const i64 index = key.index;
      try {
        if (error) {
          std::rethrow_exception(std::exchange(error, nullptr));
        }
        if (attempt > 0 && needs_fetch) {
          set->fetch(key, raw[s]);
        }
        set->load(key, needs_fetch ? std::span<const std::byte>(raw[s]) : std::span<const std::byte>(),
                  fields);
        ids[s] = index;
        targets[s] = std::int32_t(set->targets(fields));
        break;
      } catch (const DataError&) {
        if (options.bad.replace && attempt < kReplacements) {
          // The next sample in index order: a function of the sample alone.
          bad_here.push_back(index);
          key.index = (index + 1) % sampler.size;
          continue;
        }
        fail_at(n, named(std::current_exception(), n, index));
        break;
      } catch (...) {
        fail_at(n, named(std::current_exception(), n, index));
        break;
      }
    }
    if (!bad_here.empty()) {
      const std::lock_guard lock(mutex);
      replaced[n] = std::move(bad_here);
    }
  }

  void fail_at(i64 n, std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    errors[n] = std::move(error);
  }

  // Takes work for one token: [from, to), or one sample that was read. Under the mutex.
  bool claim(i64& from, i64& to) {
    if (paused || stopping) {
      return false;
    }
    if (needs_fetch) {
      if (read.empty()) {
        return false;
      }
      from = read.front();
      read.pop_front();
      to = from + 1;
      return true;
    }
    const i64 most = limit();
    if (claimed >= most) {
      return false;
    }
    from = claimed;
    i64 chunk = 1;
    if (cheap) {
      // Never so much that other workers stand idle.
      chunk = std::clamp<i64>((most - claimed) / std::max(1, 2 * options.workers), 1, kChunk);
    }
    to = std::min(most, from + chunk);
    claimed = to;
    return true;
  }

  void work(i64 from, i64 to, EpochOrder& order, int token) {
    const double begin = now();
    const double cpu = thread_cpu();
    if (!cheap) {
      const std::lock_guard lock(mutex);
      if (token >= 0) {
        loading[std::size_t(token)] = {from, key_of(from, order).index, begin};
      }
    }
    for (i64 n = from; n < to; ++n) {
      load(n, order);
      ready[std::size_t(slot_of(n))].store(n + 1, std::memory_order_release);
    }
    const double end = now();
    for (i64 n = from; n < to; ++n) {
      Stamp& stamp = stamps[std::size_t(slot_of(n))];
      stamp.load_begin = begin;
      stamp.load_end = end;
    }
    const double spent = thread_cpu() - cpu;
    const std::lock_guard lock(mutex);
    if (token >= 0) {
      loading[std::size_t(token)].n = -1;
    }
    stats.samples += to - from;
    stats.service_seconds += end - begin;
    stats.cpu_seconds += spent;
    if (from < wanted) {
      arrived.notify_one();
    }
  }

  // One worker token: works until there is nothing to do or there are too many tokens.
  void token(int number) {
    const parallel::SerialScope serial;
    EpochOrder order;
    std::unique_lock lock(mutex);
    i64 from = 0;
    i64 to = 0;
    while (tokens <= options.workers && claim(from, to)) {
      lock.unlock();
      work(from, to, order, number);
      lock.lock();
    }
    --tokens;
    free_tokens.push_back(number);
    quiet.notify_all();
  }
  std::vector<int> free_tokens;

  bool work_waits() const { return needs_fetch ? !read.empty() : claimed < limit(); }

  // Starts tokens for the work that waits. Under the mutex.
  void pump() {
    if (paused || stopping) {
      return;
    }
    i64 waiting = needs_fetch ? i64(read.size()) : limit() - claimed;
    if (cheap) {
      waiting = (waiting + kChunk - 1) / kChunk;
    }
    while (tokens < options.workers && waiting > 0 && !free_tokens.empty()) {
      const int number = free_tokens.back();
      free_tokens.pop_back();
      ++tokens;
      --waiting;
      arena->enqueue([self = shared_from_this(), number] { self->token(number); });
    }
    if (needs_fetch) {
      read_room.notify_all();
    }
  }

  // ---- reading ----

  void reader(int number) {
    const parallel::SerialScope serial;
    EpochOrder order;
    std::unique_lock lock(mutex);
    while (true) {
      read_room.wait(lock, [&] {
        return stopping || (!paused && number < options.io_concurrency && next_read < limit());
      });
      if (stopping) {
        break;
      }
      const i64 n = next_read++;
      const auto s = std::size_t(slot_of(n));
      const SampleKey key = key_of(n, order);
      Reader& me = readers[std::size_t(number)];
      me = {n, key.index, now()};
      lock.unlock();
      std::exception_ptr error;
      try {
        set->fetch(key, raw[s]);
      } catch (...) {
        error = std::current_exception();
      }
      const double end = now();
      lock.lock();
      fetch_errors[s] = error;
      stamps[s].fetch_begin = me.since;
      stamps[s].fetch_end = end;
      ++stats.fetched;
      stats.fetch_seconds += end - me.since;
      me.n = -1;
      read.push_back(n);
      quiet.notify_all();
      if (n < wanted && options.workers == 0) {
        arrived.notify_one();
      }
      pump();
    }
    --live_readers;
    quiet.notify_all();
  }

  void start_readers() {
    while (int(threads.size()) < options.io_concurrency) {
      readers.emplace_back();
      ++live_readers;
      const int number = int(threads.size());
      threads.emplace_back([self = shared_from_this(), number] { self->reader(number); });
    }
  }

  bool reading() const {
    return std::any_of(readers.begin(), readers.end(), [](const Reader& r) { return r.n >= 0; });
  }

  // Stops all work and waits for what runs; under the mutex.
  void pause(std::unique_lock<std::mutex>& lock) {
    paused = true;
    quiet.wait(lock, [&] { return tokens == 0 && !reading(); });
  }

  void throw_if_read_hangs() const {
    for (const Reader& r : readers) {
      if (r.n >= 0 && now() - r.since > options.read_limit) {
        throw StalledError(format(
            "loader: reading {} has taken {}, longer than loader.read_limit ({}); the storage does not "
            "answer, or the limit is too low",
            place(r.n, r.index), seconds_text(now() - r.since), seconds_text(options.read_limit)));
      }
    }
  }

  // Advances `contiguous` as far as samples are ready.
  i64 scan(i64 up_to) {
    i64 n = contiguous.load(std::memory_order_relaxed);
    while (n < up_to && ready[std::size_t(slot_of(n))].load(std::memory_order_acquire) == n + 1) {
      ++n;
    }
    contiguous.store(n, std::memory_order_relaxed);
    return n;
  }

  void split_wait(double begin, double end, i64 from, i64 to) {
    const Stamp* last = nullptr;
    for (i64 n = from; n < to; ++n) {
      const Stamp& s = stamps[std::size_t(slot_of(n))];
      if (last == nullptr || s.load_end > last->load_end) {
        last = &s;
      }
    }
    if (last == nullptr) {
      return;
    }
    const auto overlap = [&](double a, double b) {
      return std::max(0.0, std::min(b, end) - std::max(a, begin));
    };
    WaitParts w;
    if (needs_fetch) {
      w.fetch = overlap(last->fetch_begin, last->fetch_end);
      w.queueing = overlap(begin, last->fetch_begin) + overlap(last->fetch_end, last->load_begin);
    } else {
      w.queueing = overlap(begin, last->load_begin);
    }
    w.decode = overlap(last->load_begin, last->load_end);
    w.order = overlap(last->load_end, end);
    stats.wait.fetch += w.fetch;
    stats.wait.decode += w.decode;
    stats.wait.queueing += w.queueing;
    stats.wait.order += w.order;
  }
};

Loader::Loader(std::shared_ptr<const Dataset> set, const LoaderOptions& options)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.set = std::move(set);
  s.options = options;
  s.sampler = options.sampler;
  s.sampler.size = s.set->size();
  if (s.sampler.size < 1) {
    throw DataError("loader: the data set is empty; at least one sample is needed");
  }
  check(s.sampler.world >= 1 && s.sampler.rank >= 0 && s.sampler.rank < s.sampler.world,
        "loader: rank {} of {}", s.sampler.rank, s.sampler.world);
  s.needs_fetch = s.set->needs_fetch();
  s.cheap = s.set->cheap() && !s.needs_fetch;
  i64 sample_bytes = 0;
  check(s.set->fields().size() <= 16, "loader: {} fields, at most 16", s.set->fields().size());
  for (const Field& f : s.set->fields()) {
    s.field_bytes.push_back(f.bytes());
    sample_bytes += f.bytes();
  }
  if (sample_bytes <= 0) {
    throw DataError("loader: the data set's samples have no bytes");
  }
  // A slot more for every field covers the alignment of the arrays.
  s.slots = (options.max_bytes - i64(s.field_bytes.size()) * 4096) / sample_bytes;
  if (s.slots < 2) {
    throw ConfigError(format(
        "loader.max_bytes: a sample takes {} and the ring must hold two; {} are allowed, set at least {}",
        bytes_text(double(sample_bytes)), bytes_text(double(options.max_bytes)),
        bytes_text(double(2 * sample_bytes + i64(s.field_bytes.size()) * 4096))));
  }
  // Never more than the whole run, and never more than anybody can use.
  s.slots = std::min<i64>(s.slots, i64{1} << 22);
  if (options.end >= 0) {
    s.end_n = s.sampler.first_at(options.end);
    s.slots = std::max<i64>(2, std::min(s.slots, 2 * (s.end_n - s.sampler.first_at(options.start)) + 2));
  }
  i64 at = 0;
  for (const i64 bytes : s.field_bytes) {
    s.field_offset.push_back(at);
    at = (at + bytes * s.slots + 4095) / 4096 * 4096;
  }
  s.buffer = std::make_unique<HostBuffer>(at, options.pinned);
  s.ready = std::vector<std::atomic<i64>>(std::size_t(s.slots));
  s.targets.resize(std::size_t(s.slots));
  s.ids.resize(std::size_t(s.slots));
  s.stamps.resize(std::size_t(s.slots));
  if (s.needs_fetch) {
    s.raw.resize(std::size_t(s.slots));
    s.fetch_errors.resize(std::size_t(s.slots));
  }
  s.options.batch = std::clamp<i64>(options.batch, 1, std::max<i64>(1, s.slots / 2));
  s.options.depth = std::max(1, options.depth);
  s.options.max_workers = std::max({1, options.max_workers, options.workers});
  s.options.workers = std::clamp(options.workers, 0, s.options.max_workers);
  s.options.io_concurrency = std::max(1, options.io_concurrency);
  s.head = s.released = s.claimed = s.next_read = s.sampler.first_at(options.start);
  s.contiguous = s.head;
  for (int i = s.options.max_workers - 1; i >= 0; --i) {
    s.free_tokens.push_back(i);
  }
  s.loading.resize(std::size_t(s.options.max_workers));
  // oneTBB runs no more threads than cores unless it is told that there may be more: blocking reads
  // and decodes want them.
  s.control = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism,
                                                    std::size_t(s.options.max_workers) + 1 +
                                                        std::size_t(parallel::threads()));
  s.arena = std::make_unique<tbb::task_arena>(s.options.max_workers, 0);
  s.arena->initialize();
  const std::lock_guard lock(s.mutex);
  if (s.needs_fetch) {
    s.readers.reserve(4096);
    s.threads.reserve(4096);
    s.start_readers();
  }
  s.pump();
}

Loader::~Loader() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.stopping = true;
  s.read_room.notify_all();
  s.quiet.wait(lock, [&] { return s.tokens == 0; });
  // A read that hangs for good must not hang the end of the run: its thread keeps the state alive.
  s.quiet.wait_for(lock, std::chrono::seconds(2), [&] { return s.live_readers == 0; });
  const bool all_ended = s.live_readers == 0;
  std::vector<std::thread> threads = std::move(s.threads);
  lock.unlock();
  for (std::thread& t : threads) {
    if (all_ended) {
      t.join();
    } else {
      t.detach();
    }
  }
}

Batch Loader::next(i64 count) {
  State& s = *state_;
  Batch b;
  std::unique_lock lock(s.mutex);
  check(count >= 1, "loader: next({})", count);
  count = std::min({count, s.left_in_epoch(), std::max<i64>(1, s.slots / 2)});
  if (count <= 0) {
    return b;
  }
  const i64 from = s.head;
  const i64 to = from + count;
  if (to > s.released + s.slots) {
    fail("loader: next() before earlier batches were released");
  }
  s.wanted = to;
  const i64 queued = s.scan(std::min(s.released + s.slots, s.head + s.window())) - from;
  const double marks = double(queued) / double(std::max<i64>(1, s.options.batch));
  if (s.stats.calls == 0) {
    s.stats.low = s.stats.high = marks;
  } else {
    s.stats.low = std::min(s.stats.low, marks);
    s.stats.high = std::max(s.stats.high, marks);
  }
  ++s.stats.calls;
  if (queued < count) {
    s.pump();
    const double begin = now();
    if (s.options.workers == 0) {
      // Inline: the consumer is the worker.
      EpochOrder order;
      while (s.scan(to) < to) {
        i64 a = 0;
        i64 z = 0;
        if (s.claim(a, z)) {
          lock.unlock();
          s.work(a, z, order, -1);
          lock.lock();
        } else if (s.scan(to) < to) {
          s.arrived.wait_for(lock, std::chrono::milliseconds(200));
          s.throw_if_read_hangs();
        }
      }
    } else {
      while (s.scan(to) < to) {
        s.arrived.wait_for(lock, std::chrono::milliseconds(200));
        s.throw_if_read_hangs();
        if (s.tokens == 0) {
          s.pump();
        }
      }
    }
    const double end = now();
    s.stats.wait_seconds += end - begin;
    s.split_wait(begin, end, from, to);
  }
  s.wanted = 0;
  // Errors belong to their own sample: the batch that holds it.
  const auto error = s.errors.lower_bound(from);
  if (error != s.errors.end() && error->first < to) {
    std::rethrow_exception(error->second);
  }
  for (auto it = s.replaced.lower_bound(from); it != s.replaced.end() && it->first < to;
       it = s.replaced.erase(it)) {
    s.bad.insert(s.bad.end(), it->second.begin(), it->second.end());
    s.stats.bad += i64(it->second.size());
    const i64 seen = s.delivered + (it->first - from) + 1;
    if (i64(s.bad.size()) > s.options.bad.max_count ||
        (seen >= 1000 && double(s.bad.size()) > s.options.bad.max_rate * double(seen))) {
      throw DataError(format(
          "loader: {} of {} samples could not be read, more than data.max_bad ({}) or data.max_bad_rate "
          "({}) allow; the last: {}",
          s.bad.size(), seen, s.options.bad.max_count, s.options.bad.max_rate,
          s.set->describe(s.bad.back())));
    }
  }
  b.count = count;
  b.first = from;
  b.position = s.sampler.position_of(from);
  b.epoch = s.sampler.epoch_of(b.position);
  b.ends_epoch = count == s.left_in_epoch();
  b.ids.reserve(std::size_t(count));
  for (i64 n = from; n < to; ++n) {
    const auto slot = std::size_t(s.slot_of(n));
    b.targets += s.targets[slot];
    b.ids.push_back(s.ids[slot]);
  }
  const i64 first_slot = s.slot_of(from);
  const i64 until_wrap = std::min(count, s.slots - first_slot);
  for (std::size_t f = 0; f < s.field_bytes.size(); ++f) {
    std::vector<Rows> rows = {{s.row(f, first_slot), until_wrap}};
    if (until_wrap < count) {
      rows.push_back({s.row(f, 0), count - until_wrap});
    }
    b.fields.push_back(std::move(rows));
  }
  s.head = to;
  s.delivered += count;
  s.pump();
  return b;
}

void Loader::release(const Batch& batch) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  check(batch.first == s.released, "loader: batches are released in order: {} after {}", batch.first,
        s.released);
  s.released += batch.count;
  s.pump();
}

i64 Loader::left_in_epoch() const {
  const std::lock_guard lock(state_->mutex);
  return state_->left_in_epoch();
}
i64 Loader::left() const {
  const std::lock_guard lock(state_->mutex);
  return state_->end_n < 0 ? -1 : state_->end_n - state_->head;
}
i64 Loader::position() const {
  const std::lock_guard lock(state_->mutex);
  return state_->sampler.position_of(state_->head);
}
const Dataset& Loader::set() const { return *state_->set; }

void Loader::set_batch(i64 batch) {
  const std::lock_guard lock(state_->mutex);
  state_->options.batch = std::clamp<i64>(batch, 1, std::max<i64>(1, state_->slots / 2));
  state_->pump();
}
void Loader::set_workers(int workers) {
  const std::lock_guard lock(state_->mutex);
  state_->options.workers = std::clamp(workers, 0, state_->options.max_workers);
  state_->pump();
}
void Loader::set_depth(int depth) {
  const std::lock_guard lock(state_->mutex);
  state_->options.depth = std::max(1, depth);
  state_->pump();
}
void Loader::set_io_concurrency(int readers) {
  const std::lock_guard lock(state_->mutex);
  state_->options.io_concurrency = std::clamp(readers, 1, 4096);
  if (state_->needs_fetch) {
    state_->start_readers();
  }
  state_->pump();
}
i64 Loader::batch() const {
  const std::lock_guard lock(state_->mutex);
  return state_->options.batch;
}
int Loader::workers() const {
  const std::lock_guard lock(state_->mutex);
  return state_->options.workers;
}
int Loader::depth() const {
  const std::lock_guard lock(state_->mutex);
  return state_->options.depth;
}
int Loader::io_concurrency() const {
  const std::lock_guard lock(state_->mutex);
  return state_->options.io_concurrency;
}
i64 Loader::slots() const { return state_->slots; }
i64 Loader::ring_bytes() const { return state_->buffer->bytes(); }
bool Loader::pinned() const { return state_->buffer->pinned(); }

void Loader::rewind(i64 position) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.pause(lock);
  s.head = s.released = s.claimed = s.next_read = s.sampler.first_at(position);
  s.contiguous = s.head;
  s.wanted = 0;
  s.read.clear();
  s.errors.clear();
  s.replaced.clear();
  for (auto& r : s.ready) {
    r.store(0, std::memory_order_relaxed);
  }
  s.paused = false;
  s.pump();
}

LoaderStats Loader::take_stats() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->stats, {});
}

std::vector<i64> Loader::bad_samples() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bad;
}

std::vector<LoaderActivity> Loader::activities() const {
  std::vector<LoaderActivity> all;
  // The watchdog asks while something hangs: never wait for the lock.
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    return all;
  }
  for (std::size_t i = 0; i < state_->readers.size(); ++i) {
    const auto& r = state_->readers[i];
    if (r.n >= 0) {
      all.push_back({"read", int(i), r.index, state_->set->describe(r.index), now() - r.since});
    }
  }
  for (std::size_t i = 0; i < state_->loading.size(); ++i) {
    const auto& r = state_->loading[i];
    if (r.n >= 0) {
      all.push_back({"decode", int(i), r.index, state_->set->describe(r.index), now() - r.since});
    }
  }
  return all;
}

}  // namespace penstock::data
