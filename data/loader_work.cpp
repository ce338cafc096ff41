// The threads of the loader: oneTBB tokens that load samples, and readers that fetch their bytes.
#include <fcntl.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <new>
#include <optional>
#include <system_error>

#include "data/loader_state.h"
#include "framework/core/check.h"
#include "framework/core/log.h"
#include "framework/core/parallel.h"

namespace penstock::data {
namespace {

// A buffer that one huge file has grown is given back rather than kept for the next.
constexpr std::size_t kKeptBuffer = std::size_t{16} << 20;

}  // namespace

double loader_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double loader_thread_cpu() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

RunDelay::RunDelay(bool wanted) {
  if (wanted) {
    fd_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  }
}

RunDelay::~RunDelay() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

double RunDelay::seconds() const {
  char text[96];
  const ssize_t n = fd_ >= 0 ? pread(fd_, text, sizeof text - 1, 0) : 0;
  if (n <= 0) {
    return 0;
  }
  text[n] = '\0';
  // "nanoseconds on a CPU, nanoseconds waiting for one, slices".
  const char* second = std::strchr(text, ' ');
  return second != nullptr ? double(std::strtoull(second, nullptr, 10)) * 1e-9 : 0;
}

struct Loader::State::Arena {
  explicit Arena(int places_) : places(places_), arena(places_, 0) { arena.initialize(); }
  int places;
  tbb::task_arena arena;
};

namespace {

// What loaders share. Never destroyed, as threads may outlive main().
struct Pool {
  std::mutex mutex;
  // Arenas that no loader uses, kept for the next: oneTBB starts threads for new ones before those
  // of old ones have gone to sleep.
  std::vector<std::shared_ptr<void>> arenas;
  // oneTBB runs no more threads than cores unless it is told that there may be more, and loads that
  // block want them. One limit for the process: of several, the lowest would hold.
  tbb::global_control threads{tbb::global_control::max_allowed_parallelism, 1024};
};

Pool& pool() {
  static auto* const all = new Pool;
  return *all;
}

}  // namespace

Loader::State::State() = default;

// Possibly on a worker whose load hung until the loader was gone.
Loader::State::~State() {
  close();
}

void Loader::State::choose_arena() {
  Pool& free = pool();
  // A task in an arena wakes as many threads as the arena has places, so it has one for each
  // worker. Tokens that run in another one end there.
  const int places = std::max(1, options.workers);
  const auto fits = [places](const auto& a) {
    return static_cast<const Arena*>(a.get())->places == places;
  };
  if (const auto own = std::find_if(arenas.begin(), arenas.end(), fits); own != arenas.end()) {
    arena = own->get();
    return;
  }
  const std::lock_guard lock(free.mutex);
  if (const auto it = std::find_if(free.arenas.begin(), free.arenas.end(), fits);
      it != free.arenas.end()) {
    arenas.push_back(std::static_pointer_cast<Arena>(*it));
    free.arenas.erase(it);
  } else {
    arenas.push_back(std::make_shared<Arena>(places));
  }
  arena = arenas.back().get();
}

void Loader::State::close() {
  {
    Pool& free = pool();
    const std::lock_guard lock(free.mutex);
    free.arenas.insert(free.arenas.end(), arenas.begin(), arenas.end());
  }
  arenas.clear();
  arena = nullptr;
  buffer.reset();
  set.reset();
}

// ---- what a sample is ---------------------------------------------------------------------------

SampleKey Loader::State::key_of(i64 n, EpochOrder& order) const {
  const i64 position = sampler.position_of(n);
  const i64 epoch = sampler.epoch_of(position);
  if (order.epoch() != epoch) {
    order = sampler.order(epoch);
  }
  return {.index = order.at(position - epoch * sampler.size), .epoch = epoch, .seed = sampler.seed};
}

std::string Loader::State::place(i64 n, i64 index) const {
  const std::string file = set->describe(index);
  return format("sample {} at position {}{}", index, sampler.position_of(n),
                file.empty() ? "" : format(" ({})", file));
}

// What a load threw, with the sample's name; anything may be thrown, and nothing is lost.
std::exception_ptr Loader::State::named(const std::exception_ptr& error, i64 n, i64 index) const {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return error;
  } catch (const OutOfMemory&) {
    return error;
  } catch (const StalledError&) {
    return error;
  } catch (const Error& e) {
    return std::make_exception_ptr(DataError(format("loader: {}: {}", place(n, index), e.what())));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(Error(format("loader: {}: {}", place(n, index), e.what())));
  } catch (...) {
    return std::make_exception_ptr(
        Error(format("loader: {}: an exception of unknown type", place(n, index))));
  }
}

// ---- loading ------------------------------------------------------------------------------------

bool Loader::State::claim(i64& from, i64& to, int token) {
  if (paused || stopping) {
    return false;
  }
  if (needs_fetch) {
    if (read.empty()) {
      return false;
    }
    std::pop_heap(read.begin(), read.end(), std::greater<>());
    from = read.back();
    read.pop_back();
    to = from + 1;
  } else {
    const i64 most = limit();
    if (claimed >= most) {
      return false;
    }
    from = claimed;
    // Never so much that other workers stand idle.
    const i64 share = (most - claimed) / std::max(1, 2 * options.workers);
    to = std::min(most, from + (cheap ? std::clamp<i64>(share, 1, kChunk) : 1));
    claimed = to;
  }
  (token >= 0 ? loading[std::size_t(token)] : inlined) = {from, loader_seconds()};
  return true;
}

// Fills the slot of sample n; the fetch, if any, is done.
void Loader::State::load(i64 n, EpochOrder& order) {
  const i64 slot = slot_of(n);
  const auto s = std::size_t(slot);
  std::byte* rows[kMaxFields];
  for (std::size_t f = 0; f < field_bytes.size(); ++f) {
    rows[f] = row(f, slot);
  }
  const std::span<std::byte* const> fields(rows, field_bytes.size());
  SampleKey key = key_of(n, order);
  ids[s] = key.index;
  targets[s] = 0;
  std::exception_ptr error = needs_fetch ? std::exchange(fetch_errors[s], nullptr) : nullptr;
  std::vector<BadSample> bad_here;
  for (int attempt = 0;; ++attempt) {
    const i64 index = key.index;
    try {
      if (error) {
        std::rethrow_exception(std::exchange(error, nullptr));
      }
      if (attempt > 0 && needs_fetch) {
        set->fetch(key, raw[s]);
      }
      set->load(key,
                needs_fetch ? std::span<const std::byte>(raw[s]) : std::span<const std::byte>(),
                fields);
      targets[s] = set->targets(fields);
      ids[s] = index;
      break;
    } catch (const DataError& e) {
      if (options.bad.replace && attempt < kReplacements) {
        // The next sample in index order: a function of the sample alone.
        bad_here.push_back({index, e.what()});
        key.index = (index + 1) % sampler.size;
        continue;
      }
      error = std::current_exception();
    } catch (...) {
      error = std::current_exception();
    }
    error = named(error, n, index);
    break;
  }
  if (error || !bad_here.empty()) {
    const std::lock_guard lock(mutex);
    if (error) {
      errors[n] = std::move(error);
    }
    if (!bad_here.empty()) {
      replaced[n] = std::move(bad_here);
    }
  }
}

// Cheap samples, as many at once as lie side by side in the ring.
void Loader::State::load_chunk(i64 from, i64 to, EpochOrder& order) {
  SampleKey keys[kChunk];
  for (i64 n = from; n < to;) {
    const i64 slot = slot_of(n);
    const i64 count = std::min({to - n, extent - slot, kChunk});
    for (i64 i = 0; i < count; ++i) {
      keys[i] = key_of(n + i, order);
    }
    std::byte* rows[kMaxFields];
    for (std::size_t f = 0; f < field_bytes.size(); ++f) {
      rows[f] = row(f, slot);
    }
    const std::span<std::byte* const> fields(rows, field_bytes.size());
    try {
      set->load_many({keys, std::size_t(count)}, fields);
      for (i64 i = 0; i < count; ++i) {
        ids[std::size_t(slot + i)] = keys[i].index;
        targets[std::size_t(slot + i)] = set->targets(fields);
        for (std::size_t f = 0; f < field_bytes.size(); ++f) {
          rows[f] += field_bytes[f];
        }
      }
    } catch (...) {
      // One by one: the error belongs to one of them.
      for (i64 i = 0; i < count; ++i) {
        load(n + i, order);
      }
    }
    n += count;
  }
}

void Loader::State::work(i64 from, i64 to, EpochOrder& order, const RunDelay& delay, int token,
                         std::unique_lock<std::mutex>& lock, bool& wake) {
  Busy& busy = token >= 0 ? loading[std::size_t(token)] : inlined;
  const double begin = busy.since;
  lock.unlock();
  if (std::exchange(wake, false)) {
    arrived.notify_one();  // without the lock, or it would wake only to wait for that
  }
  const double cpu = loader_thread_cpu();
  const double waited = delay.seconds();
  if (cheap) {
    load_chunk(from, to, order);
  } else {
    load(from, order);
  }
  const double spent = loader_thread_cpu() - cpu;
  const double end = loader_seconds();
  // Cheap samples come from memory: what was not on a CPU waited for one.
  const double late =
      cheap ? std::max(0.0, end - begin - spent) : std::min(end - begin, delay.seconds() - waited);
  i64 slot = slot_of(from);
  FetchBuffer used;
  i64 used_bytes = 0;
  if (needs_fetch) {
    used_bytes = raw_size[std::size_t(slot)];
    used = std::exchange(raw[std::size_t(slot)], {});
  }
  // From here on the consumer may hand the slots over and give them back.
  for (i64 n = from; n < to; ++n, slot = after(slot)) {
    Stamp& stamp = stamps[std::size_t(slot)];
    stamp.load_begin = begin;
    stamp.load_end = end;
    stamp.delay = late;
    ready[std::size_t(slot)].store(n + 1, std::memory_order_release);
  }
  lock.lock();
  busy.n = -1;
  stats.samples += to - from;
  stats.service_seconds += end - begin;
  stats.cpu_seconds += spent;
  stats.delay_seconds += late;
  if (needs_fetch) {
    raw_bytes -= used_bytes;
    if (used.capacity() <= kKeptBuffer) {
      spare.push_back(std::move(used));
    }
    --fetched_ahead;
  }
  wake = token >= 0 && from < wanted && scan(wanted) >= wanted;
}

// One worker token: works until there is nothing to do or there are too many of them.
void Loader::State::token(int number) {
  const parallel::SerialScope serial;
  std::optional<RunDelay> delay(std::in_place, !cheap);
  EpochOrder order;
  std::unique_lock lock(mutex);
  --starting;
  i64 from = 0;
  i64 to = 0;
  bool wake = false;
  while (tokens <= options.workers && claim(from, to, number)) {
    work(from, to, order, *delay, number, lock, wake);
    if (needs_fetch) {
      pump();  // room for a read
    }
  }
  delay.reset();  // its descriptor must be gone when the loader is
  --tokens;
  free_tokens.push_back(number);
  if (paused || stopping) {
    quiet.notify_all();
  }
  lock.unlock();
  if (wake) {
    arrived.notify_one();
  }
}

void Loader::State::pump() {
  if (paused || stopping) {
    return;
  }
  i64 waiting = 0;
  if (needs_fetch) {
    waiting = i64(read.size());
    i64 room = read_room();
    for (std::size_t i = 0; i < readers.size() && room > 0 && int(i) < options.io_concurrency;
         ++i) {
      if (readers[i].idle) {
        readers[i].idle = false;
        readers[i].go.notify_one();
        --room;
      }
    }
  } else {
    waiting = limit() - claimed;
    if (cheap) {
      // Waking a worker costs as much as a hundred samples: not before half of what may be ahead is
      // gone, unless the consumer needs the samples now.
      const bool worth = 2 * waiting >= window() || wanted > claimed;
      waiting = worth ? (waiting + kChunk - 1) / kChunk : 0;
    }
  }
  waiting -= starting;
  while (tokens < options.workers && waiting > 0 && !free_tokens.empty()) {
    const int number = free_tokens.back();
    free_tokens.pop_back();
    ++tokens;
    ++starting;
    --waiting;
    try {
      arena->arena.enqueue([self = shared_from_this(), number] { self->token(number); });
    } catch (...) {
      --tokens;
      --starting;
      free_tokens.push_back(number);
      return;  // the consumer asks again
    }
  }
}

// ---- reading ------------------------------------------------------------------------------------

// Reads that may begin now. What was read and not loaded lies outside the ring: it is bounded by
// what keeps every thread busy, and by half of what the ring may take.
i64 Loader::State::read_room() const {
  if (raw_bytes > options.max_bytes / 2) {
    return 0;
  }
  const i64 ahead = 2 * (i64(options.io_concurrency) + std::max(1, options.workers)) + 8;
  return std::min(limit() - next_read, ahead - fetched_ahead);
}

void Loader::State::reader(Reader& me, int number) {
  const parallel::SerialScope serial;
  EpochOrder order;
  std::unique_lock lock(mutex);
  while (true) {
    while (!stopping && (paused || number >= options.io_concurrency || read_room() <= 0)) {
      me.idle = true;
      me.go.wait(lock);
    }
    me.idle = false;
    if (stopping) {
      break;
    }
    const i64 n = next_read++;
    ++fetched_ahead;
    const double begin = loader_seconds();
    me.busy = {n, begin};
    const auto s = std::size_t(slot_of(n));
    if (!spare.empty()) {
      raw[s] = std::move(spare.back());
      spare.pop_back();
    }
    FetchBuffer& to = raw[s];
    lock.unlock();
    std::exception_ptr error;
    try {
      set->fetch(key_of(n, order), to);
    } catch (...) {
      error = std::current_exception();
    }
    const double end = loader_seconds();
    lock.lock();
    fetch_errors[s] = error;
    stamps[s].fetch_begin = begin;
    stamps[s].fetch_end = end;
    raw_size[s] = i64(to.size());
    raw_bytes += raw_size[s];
    ++stats.fetched;
    stats.fetch_seconds += end - begin;
    stats.fetched_bytes += error ? 0 : i64(to.size());
    me.busy.n = -1;
    read.push_back(n);
    std::push_heap(read.begin(), read.end(), std::greater<>());
    if (paused || stopping) {
      quiet.notify_all();
    }
    if (options.workers == 0 && wanted > 0) {
      arrived.notify_one();
    }
    pump();
  }
  --live_readers;
  quiet.notify_all();
}

void Loader::State::start_readers() {
  while (int(readers.size()) < options.io_concurrency) {
    const int number = int(readers.size());
    Reader& me = readers.emplace_back();
    try {
      me.thread =
          std::thread([self = shared_from_this(), &me, number] { self->reader(me, number); });
      ++live_readers;
    } catch (const std::system_error& e) {
      readers.pop_back();
      if (readers.empty()) {
        throw ConfigError(
            format("loader.io_concurrency: not one thread can be started: {}", e.what()));
      }
      log::warn_once("loader readers",
                     format("loader.io_concurrency: {} of {} threads can be started: {}", number,
                            options.io_concurrency, e.what()));
      options.io_concurrency = number;
    }
  }
}

// A read that hangs for good must not hang the end of the run: its thread keeps the state alive.
void Loader::State::stop_readers(std::unique_lock<std::mutex>& lock) {
  for (Reader& r : readers) {
    r.go.notify_one();
  }
  quiet.wait_for(lock, std::chrono::seconds(2), [&] { return live_readers == 0; });
  const bool all_ended = live_readers == 0;
  lock.unlock();
  for (Reader& r : readers) {
    if (all_ended) {
      r.thread.join();
    } else {
      r.thread.detach();
    }
  }
  lock.lock();
}

bool Loader::State::reading() const {
  return std::any_of(readers.begin(), readers.end(), [](const Reader& r) { return r.busy.n >= 0; });
}

void Loader::State::pause(std::unique_lock<std::mutex>& lock) {
  paused = true;
  while (tokens > 0 || reading()) {
    quiet.wait_for(lock, std::chrono::milliseconds(200));
    try {
      throw_if_something_hangs();
    } catch (...) {
      paused = false;
      throw;
    }
  }
}

bool Loader::State::hangs(const Busy& busy) const {
  return busy.n >= 0 && loader_seconds() - busy.since > options.read_limit;
}

void Loader::State::throw_if_something_hangs() const {
  const auto look = [&](const Busy& busy, const char* what) {
    if (hangs(busy)) {
      EpochOrder order;
      throw StalledError(
          format("loader: {} {} has taken {}, longer than loader.read_limit ({}); the storage does "
                 "not answer, "
                 "or the limit is too low",
                 what, place(busy.n, key_of(busy.n, order).index),
                 seconds_text(loader_seconds() - busy.since), seconds_text(options.read_limit)));
    }
  };
  for (const Reader& r : readers) {
    look(r.busy, "reading");
  }
  for (const Busy& b : loading) {
    look(b, "loading");
  }
}

}  // namespace penstock::data
