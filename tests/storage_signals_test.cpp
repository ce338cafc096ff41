// Signals as requests, each case in a child of its own; and the watchdog.
#include "framework/io/signals.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "framework/io/json.h"
#include "framework/io/watchdog.h"
#include "tests/storage_helpers.h"

namespace penstock::io {
namespace {

// Runs `body` in a child and returns how it ended; a body that returns true exits with 0.
template <class F>
int status_of(F body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    ::_exit(body() ? 0 : 99);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}
template <class F>
int exit_of(F body) {
  const int status = status_of(body);
  EXPECT_TRUE(WIFEXITED(status));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StorageSignals, TheFirstStopIsARequest) {
  struct Case {
    int signal;
    signals::Stop stop;
    ExitCode code;
  };
  for (const Case& c : {Case{SIGINT, signals::Stop::kInterrupt, ExitCode::kInterrupted},
                        Case{SIGTERM, signals::Stop::kTerminate, ExitCode::kTerminated},
                        Case{SIGHUP, signals::Stop::kTerminate, ExitCode::kTerminated}}) {
    EXPECT_EQ(exit_of([&] {
                ::signal(SIGHUP, SIG_DFL);
                signals::install();
                const bool before = signals::stop_requested() == signals::Stop::kNone;
                ::raise(c.signal);
                return before && signals::stop_requested() == c.stop &&
                       signals::exit_code(c.stop) == c.code;
              }),
              0);
  }
}

TEST(StorageSignals, TheSecondStopLeavesAtOnceWithItsCode) {
  struct Case {
    int first;
    int second;
    int code;
  };
  for (const Case& c : {Case{SIGINT, SIGINT, 130}, Case{SIGTERM, SIGTERM, 143},
                        Case{SIGTERM, SIGINT, 130}, Case{SIGINT, SIGTERM, 143}}) {
    EXPECT_EQ(exit_of([&] {
                signals::install();
                ::raise(c.first);
                ::raise(c.second);
                return false;  // not reached
              }),
              c.code);
  }
}

TEST(StorageSignals, HangUpStaysIgnoredUnderNohup) {
  EXPECT_EQ(exit_of([] {
              ::signal(SIGHUP, SIG_IGN);
              signals::install();
              ::raise(SIGHUP);
              ::raise(SIGHUP);
              return signals::stop_requested() == signals::Stop::kNone;
            }),
            0);
}

TEST(StorageSignals, SaveAndRetryAreTakenOnce) {
  EXPECT_EQ(exit_of([] {
              signals::install();
              bool good = !signals::take_save_request() && !signals::take_retry_request();
              ::raise(SIGUSR1);
              ::raise(SIGUSR1);
              good = good && signals::take_save_request() && !signals::take_save_request();
              ::raise(SIGUSR2);
              good = good && signals::take_retry_request() && !signals::take_retry_request();
              ::raise(SIGCONT);
              return good && signals::take_retry_request() &&
                     signals::stop_requested() == signals::Stop::kNone;
            }),
            0);
}

TEST(StorageSignals, ABrokenPipeIsAnErrorOfWrite) {
  EXPECT_EQ(exit_of([] {
              signals::install();
              int ends[2];
              if (::pipe(ends) != 0) {
                return false;
              }
              ::close(ends[0]);
              return ::write(ends[1], "x", 1) < 0 && errno == EPIPE;
            }),
            0);
}

TEST(StorageSignals, AWaitEndsWithASignalOrAWake) {
  EXPECT_EQ(exit_of([] {
              signals::install();
              const pid_t self = ::getpid();
              std::thread sender([self] { ::kill(self, SIGTERM); });
              while (signals::stop_requested() == signals::Stop::kNone) {
                signals::wait(3600);  // the alarm would end this child
              }
              sender.join();
              std::thread waker([] { signals::wake(); });
              signals::wait(3600);
              waker.join();
              signals::wait(0);
              signals::wait(-1);
              return true;
            }),
            0);
}

TEST(StorageSignals, ARequestedStopCountsAsOne) {
  EXPECT_EQ(exit_of([] {
              signals::install();
              signals::request_stop(signals::Stop::kTerminate);
              signals::request_stop(signals::Stop::kInterrupt);
              return signals::stop_requested() == signals::Stop::kTerminate;
            }),
            0);
}

// ---- the watchdog

TEST(StorageWatchdog, TheLimitIsTwentyMedianStepsAndAtLeastTheMinimum) {
  StallRule rule(60, 20, 0);
  EXPECT_EQ(rule.limit(), 60);
  rule.step_took(1);
  EXPECT_EQ(rule.limit(), 60);
  for (int i = 0; i < 10; ++i) {
    rule.step_took(10);
  }
  EXPECT_EQ(rule.limit(), 200);
  for (int i = 0; i < 64; ++i) {  // the latest count
    rule.step_took(4);
  }
  EXPECT_EQ(rule.limit(), 80);
  rule.advanced(100);
  EXPECT_FALSE(rule.stalled(180));
  EXPECT_TRUE(rule.stalled(181));
  rule.excuse(50);
  EXPECT_FALSE(rule.stalled(181));
}

TEST(StorageWatchdog, AStallIsNamedOnceWithWhatOthersAreAt) {
  const TestFolder folder;
  Watchdog dog({.minimum_seconds = 0.02, .report_path = folder / "stall.json", .stop = true});
  dog.set_inspector([] {
    return std::vector<Activity>{
        {.stage = "read", .worker = 3, .sample = 77, .file = "data/a\xff.jpg", .seconds = 2}};
  });
  dog.enter("wait for data", 76);
  while (dog.stalls() == 0) {
    std::this_thread::yield();
  }
  std::string text;
  while (text.empty()) {  // the report comes first, the flag a moment later
    try {
      dog.throw_if_stalled();
    } catch (const StalledError& e) {
      text = e.what();
      EXPECT_EQ(e.code(), ExitCode::kStalled);
    }
  }
  for (const char* part : {"wait for data", "sample 76", "read, worker 3, sample 77",
                           "data/a\\xff.jpg", "nothing has advanced"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  const Json json = Json::parse(contents_of(folder / "stall.json"), "stall.json");
  ASSERT_NE(json.find("activities"), nullptr);
  ASSERT_EQ(json.find("activities")->items()->size(), 2u);
  EXPECT_EQ((*json.find("activities")->items())[1].find("worker")->number(), 3);
}

TEST(StorageWatchdog, WithoutStopItIsOnlyNamedAndAnAdvanceArmsItAgain) {
  Watchdog dog({.minimum_seconds = 0.02});
  dog.set_inspector([]() -> std::vector<Activity> { throw std::runtime_error("no answer"); });
  for (int i = 1; i <= 2; ++i) {
    dog.enter("step");
    while (dog.stalls() < i) {
      std::this_thread::yield();
    }
    EXPECT_NO_THROW(dog.throw_if_stalled());
  }
}

TEST(StorageWatchdog, AThreadThatHangsInACallIsAbandonedOnce) {
  std::atomic<int> abandoned{0};
  {
    Watchdog dog({.minimum_seconds = 0.01,
                  .stop = true,
                  .abandon = [&] { ++abandoned; },
                  .grace_seconds = 0.01});
    while (abandoned == 0) {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(abandoned, 1);
}

}  // namespace
}  // namespace penstock::io
