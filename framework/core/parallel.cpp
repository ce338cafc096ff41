#include "framework/core/parallel.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>

#include "framework/core/check.h"
#include "framework/core/machine.h"

namespace penstock::parallel {
namespace {

std::atomic<int> g_threads{0};
std::atomic<Team> g_team{nullptr};
thread_local bool t_serial = false;

void tbb_team(int count, void (*body)(void*, int), void* context) {
  static std::mutex mutex;
  static std::unique_ptr<tbb::task_arena> arena;
  static int arena_size = 0;
  tbb::task_arena* use = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (arena_size != threads()) {
      arena_size = threads();
      arena = std::make_unique<tbb::task_arena>(arena_size);
    }
    use = arena.get();
  }
  use->execute([&] {
    tbb::parallel_for(
        0, count, 1, [&](int i) { body(context, i); }, tbb::static_partitioner());
  });
}

// Runs body on every index, keeping the first exception: none may cross into a team's own frames.
void dispatch(int count, FunctionRef<void(int)> body) {
  struct Job {
    FunctionRef<void(int)> body;
    std::mutex mutex;
    std::exception_ptr error;
  } job{body, {}, {}};
  const auto call = [](void* context, int index) {
    auto& j = *static_cast<Job*>(context);
    const bool before = t_serial;
    t_serial = true;
    try {
      j.body(index);
    } catch (...) {
      const std::lock_guard lock(j.mutex);
      if (!j.error) {
        j.error = std::current_exception();
      }
    }
    t_serial = before;
  };
  const Team team = g_team.load(std::memory_order_acquire);
  (team ? team : tbb_team)(count, call, &job);
  if (job.error) {
    std::rethrow_exception(job.error);
  }
}

}  // namespace

int threads() {
  int count = g_threads.load(std::memory_order_relaxed);
  if (count == 0) {
    count = machine::cores();
    g_threads.store(count, std::memory_order_relaxed);
  }
  return count;
}

void set_threads(int count) {
  check(count >= 1, "threads: {} compute threads, at least 1 is needed", count);
  g_threads.store(count, std::memory_order_relaxed);
}

namespace {

void split(i64 n, i64 grain, i64 multiple, FunctionRef<void(i64, i64)> body) {
  if (n <= 0) {
    return;
  }
  const i64 most = std::max<i64>(1, n / std::max<i64>(1, grain));
  const int pieces = t_serial ? 1 : int(std::min<i64>(threads(), most));
  if (pieces == 1) {
    body(0, n);
    return;
  }
  const i64 step = ((n + pieces - 1) / pieces + multiple - 1) / multiple * multiple;
  dispatch(pieces, [&](int i) {
    const i64 begin = std::min(n, i * step);
    const i64 end = i + 1 == pieces ? n : std::min(n, begin + step);
    if (begin < end) {
      body(begin, end);
    }
  });
}

}  // namespace

void run(i64 n, i64 grain, FunctionRef<void(i64, i64)> body) { split(n, grain, 64, body); }
void rows(i64 n, i64 grain, FunctionRef<void(i64, i64)> body) { split(n, grain, 1, body); }

void tasks(int count, FunctionRef<void(int)> body) {
  if (count <= 0) {
    return;
  }
  const int pieces = t_serial ? 1 : std::min(count, threads());
  if (pieces == 1) {
    for (int i = 0; i < count; ++i) {
      body(i);
    }
    return;
  }
  std::atomic<int> next{0};
  dispatch(pieces, [&](int) {
    for (int i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      body(i);
    }
  });
}

SerialScope::SerialScope() : before_(t_serial) {
  t_serial = true;
}
SerialScope::~SerialScope() {
  t_serial = before_;
}

void set_team(Team team) {
  g_team.store(team, std::memory_order_release);
}

}  // namespace penstock::parallel
