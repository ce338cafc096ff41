#include "framework/io/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <string_view>

namespace penstock::signals {
namespace {

// Touched by handlers: lock-free atomics only.
std::atomic<int> g_stop{0};
std::atomic<bool> g_save{false};
std::atomic<bool> g_retry{false};
std::atomic<int> g_wake{-1};  // an eventfd
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void say(std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

void wake_waiters() {
  const int fd = g_wake.load();
  if (fd >= 0) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(fd, &one, sizeof(one));
  }
}

// Async-signal-safe: atomics, write and _exit.
void on_stop(int signal) {
  const int saved_errno = errno;
  const Stop stop = signal == SIGINT ? Stop::kInterrupt : Stop::kTerminate;
  int none = 0;
  if (!g_stop.compare_exchange_strong(none, int(stop))) {
    say("penstock: asked again to stop, leaving without saving; the last checkpoint stands\n");
    ::_exit(128 + (stop == Stop::kInterrupt ? SIGINT : SIGTERM));
  }
  say("penstock: stopping at the end of this step, saving first (ask again to leave at once)\n");
  wake_waiters();
  errno = saved_errno;
}

void on_request(int signal) {
  const int saved_errno = errno;
  (signal == SIGUSR1 ? g_save : g_retry) = true;
  wake_waiters();
  errno = saved_errno;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  // One handler at a time; interrupted system calls go on where the system can do that.
  sigfillset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  if (::sigaction(signal, &action, nullptr) != 0) {
    fail(format("signals: no handler for signal {}: {}", signal, std::strerror(errno)));
  }
}

bool ignored_at_start(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

int wake_descriptor() {
  int fd = g_wake.load();
  if (fd < 0) {
    const int fresh = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fresh >= 0 && !g_wake.compare_exchange_strong(fd, fresh)) {
      ::close(fresh);
    }
  }
  return g_wake.load();
}

}  // namespace

void install() {
  wake_descriptor();
  handle(SIGINT, on_stop);
  handle(SIGTERM, on_stop);
  if (!ignored_at_start(SIGHUP)) {
    handle(SIGHUP, on_stop);
  }
  handle(SIGUSR1, on_request);
  handle(SIGUSR2, on_request);
  handle(SIGCONT, on_request);
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
}

Stop stop_requested() {
  return Stop(g_stop.load());
}

void request_stop(Stop stop) {
  int none = 0;
  g_stop.compare_exchange_strong(none, int(stop));
  wake_waiters();
}

bool take_save_request() {
  return g_save.load() && g_save.exchange(false);
}

bool take_retry_request() {
  return g_retry.load() && g_retry.exchange(false);
}

ExitCode exit_code(Stop stop) {
  switch (stop) {
    case Stop::kInterrupt: return ExitCode::kInterrupted;
    case Stop::kTerminate: return ExitCode::kTerminated;
    case Stop::kNone: break;
  }
  return ExitCode::kDone;
}

void wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const double most = 24 * 3600;
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(std::clamp(seconds, 0.0, most)));
  pollfd waiting{.fd = wake_descriptor(), .events = POLLIN, .revents = 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int ready = ::poll(&waiting, 1, int(std::max<std::int64_t>(0, left)));
    if (ready < 0 && errno == EINTR && Clock::now() < end) {
      continue;  // a handler of ours has written to the descriptor, or the signal was not for us
    }
    if (ready > 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t ignored = ::read(waiting.fd, &count, sizeof(count));
    }
    return;
  }
}

void wake() {
  wake_waiters();
}

}  // namespace penstock::signals
