#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "data/loader_state.h"
#include "framework/core/check.h"
#include "framework/core/log.h"

namespace penstock::data {
namespace {

// The ring starts with so many bytes even when fewer would do: they stay in caches.
constexpr i64 kSmallRing = i64{4} << 20;
constexpr std::chrono::milliseconds kLook{200};  // between looks for reads that hang
constexpr std::chrono::seconds kPatience{5};     // with loads that go on when the loader ends

}  // namespace

// ---- the ring -----------------------------------------------------------------------------------

i64 Loader::State::window() const {
  return std::min(slots, (i64(options.depth) + 1) * options.batch);
}

i64 Loader::State::limit() const {
  i64 most = std::min(released + extent, head + window());
  most = std::max(most, std::min(released + extent, wanted));
  if (released < fence) {
    most = std::min(most, fence_end);
  }
  return end_n >= 0 ? std::min(most, end_n) : most;
}

i64 Loader::State::left_in_epoch() const {
  const i64 position = sampler.position_of(head);
  const i64 border = (sampler.epoch_of(position) + 1) * sampler.size;
  const i64 left = sampler.first_at(border) - head;
  return end_n >= 0 ? std::min(left, end_n - head) : left;
}

i64 Loader::State::needed(i64 count) const {
  return head - released + std::max(window(), count);
}

void Loader::State::set_extent(i64 wanted_slots) {
  // Growing places new samples behind the old ones, so the last step is a long one: what it leaves
  // behind until it is released is an eighth of the ring.
  extent = wanted_slots > slots / 8 ? slots : wanted_slots;
  const auto n = std::size_t(extent);
  ready = std::vector<std::atomic<i64>>(n);
  targets.assign(n, 0);
  ids.assign(n, 0);
  stamps.assign(n, {});
  if (needs_fetch) {
    raw = std::vector<FetchBuffer>(n);
    raw_size.assign(n, 0);
    fetch_errors.assign(n, nullptr);
  }
}

void Loader::State::grow(std::unique_lock<std::mutex>& lock, i64 wanted_slots) {
  pause(lock);
  forget_from(head);
  const i64 before = extent;
  set_extent(std::max(2 * before, before + 2 * wanted_slots));
  if (head > released) {
    base = head - before;
    fence = head;
    fence_end = head + extent - before;
  } else {
    base = fence = fence_end = head;
  }
  paused = false;
}

void Loader::State::forget_from(i64 n) {
  claimed = next_read = contiguous = n;
  for (const i64 fetched : read) {
    spare.push_back(std::move(raw[std::size_t(slot_of(fetched))]));
  }
  read.clear();
  fetched_ahead = 0;
  raw_bytes = 0;
  std::fill(fetch_errors.begin(), fetch_errors.end(), nullptr);
  errors.erase(errors.lower_bound(n), errors.end());
  replaced.erase(replaced.lower_bound(n), replaced.end());
  for (auto& r : ready) {
    r.store(0, std::memory_order_relaxed);
  }
}

i64 Loader::State::scan(i64 up_to) {
  if (contiguous >= up_to) {
    return contiguous;
  }
  i64 slot = slot_of(contiguous);
  while (contiguous < up_to &&
         ready[std::size_t(slot)].load(std::memory_order_acquire) == contiguous + 1) {
    ++contiguous;
    slot = after(slot);
  }
  return contiguous;
}

// What the sample that came last was doing while the consumer waited in [begin, end].
void Loader::State::split_wait(double begin, double end, i64 from, i64 to) {
  const Stamp* last = nullptr;
  i64 slot = slot_of(from);
  for (i64 n = from; n < to; ++n, slot = after(slot)) {
    const Stamp& s = stamps[std::size_t(slot)];
    if (last == nullptr || s.load_end > last->load_end) {
      last = &s;
    }
  }
  const auto overlap = [&](double a, double b) {
    return std::max(0.0, std::min(b, end) - std::max(a, begin));
  };
  WaitParts& w = stats.wait;
  if (needs_fetch) {
    w.fetch += overlap(last->fetch_begin, last->fetch_end);
    w.queueing += overlap(begin, last->fetch_begin) + overlap(last->fetch_end, last->load_begin);
  } else {
    w.queueing += overlap(begin, last->load_begin);
  }
  const double load = overlap(last->load_begin, last->load_end);
  const double whole = last->load_end - last->load_begin;
  const double late = whole > 0 ? load * std::min(1.0, last->delay / whole) : 0;
  w.scheduling += late;
  w.decode += load - late;
  w.order += overlap(last->load_end, end);
}

// ---- the loader ---------------------------------------------------------------------------------

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
  check(options.start >= 0, "loader: starts at position {}", options.start);
  s.needs_fetch = s.set->needs_fetch();
  s.cheap = s.set->cheap() && !s.needs_fetch;
  i64 sample_bytes = 0;
  check(s.set->fields().size() <= kMaxFields, "loader: {} fields, at most {}",
        s.set->fields().size(), kMaxFields);
  for (const Field& f : s.set->fields()) {
    s.field_bytes.push_back(f.bytes());
    sample_bytes += f.bytes();
  }
  if (sample_bytes <= 0) {
    throw DataError("loader: the data set's samples have no bytes");
  }
  // A page more for every field covers the alignment of the arrays.
  const i64 pages = i64(s.field_bytes.size()) * 4096;
  s.slots = (options.max_bytes - pages) / sample_bytes;
  if (s.slots < 2) {
    throw ConfigError(
        format("loader.max_bytes: a sample takes {} and the ring must hold two; {} are allowed, "
               "set at least {}",
               bytes_text(double(sample_bytes)), bytes_text(double(options.max_bytes)),
               bytes_text(double(2 * sample_bytes + pages))));
  }
  // Never more than the whole run, and never more than anybody can use.
  s.slots = std::min<i64>(s.slots, i64{1} << 22);
  if (options.end >= 0) {
    s.end_n = std::max(s.sampler.first_at(options.end), s.sampler.first_at(options.start));
    s.slots =
        std::max<i64>(2, std::min(s.slots, 2 * (s.end_n - s.sampler.first_at(options.start)) + 2));
  }
  i64 at = 0;
  for (const i64 bytes : s.field_bytes) {
    s.field_offset.push_back(at);
    at = (at + bytes * s.slots + 4095) / 4096 * 4096;
  }
  s.buffer = std::make_unique<HostBuffer>(at, options.pinned);
  s.options.batch = std::clamp<i64>(options.batch, 1, std::max<i64>(1, s.slots / 2));
  s.options.depth = std::max(1, options.depth);
  s.options.max_workers = std::max({1, options.max_workers, options.workers});
  s.options.workers = std::max(0, options.workers);
  s.options.io_concurrency = std::clamp(options.io_concurrency, 1, kMaxReaders);
  s.set_extent(std::max(4 * s.window(), kSmallRing / sample_bytes));
  s.head = s.released = s.claimed = s.next_read = s.contiguous = s.base =
      s.sampler.first_at(options.start);
  for (int i = s.options.max_workers - 1; i >= 0; --i) {
    s.free_tokens.push_back(i);
  }
  s.loading.resize(std::size_t(s.options.max_workers));
  s.choose_arena();
  const std::lock_guard lock(s.mutex);
  if (s.needs_fetch) {
    s.start_readers();
  }
  s.pump();
}

Loader::~Loader() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.stopping = true;
  s.quiet.wait_for(lock, kPatience, [&] { return s.tokens == 0; });
  s.stop_readers(lock);
  if (s.tokens > 0 || s.live_readers > 0) {
    return;  // the last of the threads that hang frees what they use
  }
  // Here rather than wherever a worker lets go of its last reference.
  s.close();
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
  const bool fenced = s.released < s.fence && to > s.fence_end;
  if (s.extent < s.slots && (s.needed(count) > s.extent || fenced)) {
    s.grow(lock, s.needed(count));
  }
  if (to > s.released + s.extent || (s.released < s.fence && to > s.fence_end)) {
    fail("loader: next() before earlier batches were released");
  }
  s.wanted = to;
  const struct Unwanted {  // also when this throws
    State& s;
    ~Unwanted() { s.wanted = 0; }
  } unwanted{s};
  const i64 queued = s.scan(std::min(s.released + s.extent, from + s.window())) - from;
  const double marks = double(queued) / double(std::max<i64>(1, s.options.batch));
  s.stats.low = s.stats.calls == 0 ? marks : std::min(s.stats.low, marks);
  s.stats.high = s.stats.calls == 0 ? marks : std::max(s.stats.high, marks);
  ++s.stats.calls;
  if (queued < count) {
    const double begin = loader_seconds();
    EpochOrder order;
    const RunDelay delay(s.options.workers == 0 && !s.cheap);
    s.pump();
    while (s.scan(to) < to) {
      i64 a = 0;
      i64 z = 0;
      if (s.options.workers == 0 && s.claim(a, z, -1)) {
        bool wake = false;
        s.work(a, z, order, delay, -1, lock, wake);
        if (s.needs_fetch) {
          s.pump();
        }
        continue;
      }
      s.arrived.wait_for(lock, kLook);
      s.throw_if_something_hangs();
      if (s.tokens == 0) {
        s.pump();
      }
    }
    const double end = loader_seconds();
    s.stats.wait_seconds += end - begin;
    s.split_wait(begin, end, from, to);
  }
  // Errors belong to their own sample: the batch that holds it.
  const auto error = s.errors.lower_bound(from);
  if (error != s.errors.end() && error->first < to) {
    std::rethrow_exception(error->second);
  }
  for (auto it = s.replaced.lower_bound(from); it != s.replaced.end() && it->first < to;
       it = s.replaced.erase(it)) {
    for (const BadSample& sample : it->second) {
      s.bad.emplace_back(it->first, sample.index);
      ++s.stats.bad;
      log::warning("loader: {} is replaced: {}", s.place(it->first, sample.index), sample.why);
    }
    const i64 seen = s.delivered + (it->first - from) + 1;
    if (i64(s.bad.size()) > s.options.bad.max_count ||
        (seen >= 1000 && double(s.bad.size()) > s.options.bad.max_rate * double(seen))) {
      throw DataError(
          format("loader: {} of {} samples could not be read, more than data.max_bad ({}) or "
                 "data.max_bad_rate "
                 "({}) allow; the last: {}: {}",
                 s.bad.size(), seen, s.options.bad.max_count, s.options.bad.max_rate,
                 s.place(it->first, it->second.back().index), it->second.back().why));
    }
  }
  b.count = count;
  b.first = from;
  b.position = s.sampler.position_of(from);
  b.epoch = s.sampler.epoch_of(b.position);
  b.ends_epoch = count == s.left_in_epoch();
  const i64 first_slot = s.slot_of(from);
  const i64 until_wrap = std::min(count, s.extent - first_slot);
  b.ids.resize(std::size_t(count));
  i64 slot = first_slot;
  for (i64& id : b.ids) {
    b.targets += s.targets[std::size_t(slot)];
    id = s.ids[std::size_t(slot)];
    slot = s.after(slot);
  }
  for (std::size_t f = 0; f < s.field_bytes.size(); ++f) {
    std::vector<Rows>& rows = b.fields.emplace_back();
    rows.push_back({s.row(f, first_slot), until_wrap});
    if (until_wrap < count) {
      rows.push_back({s.row(f, 0), count - until_wrap});
    }
  }
  s.head = to;
  s.delivered += count;
  s.wanted = 0;
  s.pump();
  return b;
}

void Loader::release(const Batch& batch) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  check(batch.first == s.released && batch.first + batch.count <= s.head,
        "loader: batches are released once and in order: {} after {}", batch.first, s.released);
  s.released += batch.count;
  s.pump();
}

void Loader::rewind(i64 position) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  check(position >= 0, "loader: rewound to position {}", position);
  check(s.released == s.head, "loader: rewound while {} samples are held", s.head - s.released);
  s.pause(lock);
  const i64 n = s.sampler.first_at(position);
  s.forget_from(n);
  s.errors.clear();
  s.replaced.clear();
  // What will be served again is counted again.
  std::erase_if(s.bad, [n](const auto& bad) { return bad.first >= n; });
  s.delivered = std::max<i64>(0, s.delivered - std::max<i64>(0, s.head - n));
  s.head = s.released = s.base = s.fence = s.fence_end = n;
  s.paused = false;
  s.pump();
}

// ---- settings and reports -----------------------------------------------------------------------

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
const Dataset& Loader::set() const {
  return *state_->set;
}

void Loader::set_batch(i64 batch) {
  const std::lock_guard lock(state_->mutex);
  state_->options.batch = std::clamp<i64>(batch, 1, std::max<i64>(1, state_->slots / 2));
  state_->pump();
}
void Loader::set_workers(int workers) {
  const std::lock_guard lock(state_->mutex);
  const int before =
      std::exchange(state_->options.workers, std::clamp(workers, 0, state_->options.max_workers));
  if (state_->options.workers != before && state_->options.workers > 0) {
    state_->choose_arena();
  }
  state_->pump();
}
void Loader::set_depth(int depth) {
  const std::lock_guard lock(state_->mutex);
  state_->options.depth = std::max(1, depth);
  state_->pump();
}
void Loader::set_io_concurrency(int readers) {
  const std::lock_guard lock(state_->mutex);
  state_->options.io_concurrency = std::clamp(readers, 1, kMaxReaders);
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
i64 Loader::slots() const {
  return state_->slots;
}
i64 Loader::ring_bytes() const {
  return state_->buffer->bytes();
}
bool Loader::pinned() const {
  return state_->buffer->pinned();
}

LoaderStats Loader::take_stats() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->stats, {});
}

std::vector<i64> Loader::bad_samples() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<i64> indices;
  for (const auto& [n, index] : state_->bad) {
    indices.push_back(index);
  }
  return indices;
}

std::vector<LoaderActivity> Loader::activities() const {
  std::vector<LoaderActivity> all;
  const State& s = *state_;
  // The watchdog asks while something hangs: never wait for the lock.
  const std::unique_lock lock(s.mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    return all;
  }
  const auto add = [&](const char* stage, int worker, const State::Busy& busy) {
    if (busy.n >= 0) {
      EpochOrder order;
      const i64 index = s.key_of(busy.n, order).index;
      all.push_back({stage, worker, index, s.set->describe(index), loader_seconds() - busy.since});
    }
  };
  for (std::size_t i = 0; i < s.readers.size(); ++i) {
    add("read", int(i), s.readers[i].busy);
  }
  for (std::size_t i = 0; i < s.loading.size(); ++i) {
    add("decode", int(i), s.loading[i]);
  }
  add("decode", -1, s.inlined);
  return all;
}

}  // namespace penstock::data
