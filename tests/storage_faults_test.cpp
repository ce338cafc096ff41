// Every call of whole commits fails, falls short, or is the last one of the process: the last
// checkpoint stands, the same command goes on from it, and no wrong file bears a final name.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cerrno>

#include "tests/faults/harness.h"

namespace penstock::io {
namespace {

using namespace faults;

class StorageFaults : public ::testing::Test {
 protected:
  void SetUp() override { make_run(base_); }

  // A fresh copy of the run as it was before the faults.
  void restore() const {
    fs::remove_all(run_);
    fs::copy(base_, run_, fs::copy_options::recursive);
  }

  // Counts the calls of a run in which nothing fails.
  i64 calls_of(Shim& shim, const Report& like) const {
    restore();
    Report count = like;
    count.action = like.action == Action::kShort ? Action::kShort : Action::kNone;
    count.at = i64{1} << 40;
    const Ended ended = shim.run(run_, count);
    EXPECT_EQ(ended.code(), 0) << ended.text;
    EXPECT_EQ(shim.report().fired, 0);
    return shim.report().calls;
  }

  // Runs `check` after a fault at every call.
  template <class Check>
  void at_every_call(Report fault, i64 fewest, Check check) {
    Shim shim(folder_ / "report");
    const i64 calls = calls_of(shim, fault);
    ASSERT_GE(calls, fewest);
    for (i64 k = 1; k <= calls && !HasFailure(); ++k) {
      restore();
      fault.at = k;
      fault.last = std::max(fault.last, k);
      const Ended ended = shim.run(run_, fault);
      SCOPED_TRACE(format("call {} of {}: {}, ended with {}: {}", k, calls, shim.report().name,
                          ended.code(), ended.text));
      EXPECT_GE(shim.report().fired, 1);
      check(ended);
      fault.last = fault.last == k ? 0 : fault.last;
    }
  }

  TestFolder folder_{TestFolder::Where::kMemory};
  std::string base_ = folder_ / "base";
  std::string run_ = folder_ / "run";
};

TEST_F(StorageFaults, AKillAtAnyCallLosesNothingCommitted) {
  at_every_call({.action = Action::kKill}, 60, [&](const Ended& ended) {
    EXPECT_TRUE(ended.killed());
    expect_sound(run_, kBefore);
    expect_goes_on(run_);
  });
}

TEST_F(StorageFaults, AKillInTheMiddleOfAWriteLosesNothingCommitted) {
  at_every_call({.action = Action::kTearAndKill}, 60, [&](const Ended& ended) {
    EXPECT_TRUE(ended.killed());
    expect_sound(run_, kBefore);
    expect_goes_on(run_);
  });
}

TEST_F(StorageFaults, ChainsOfKillsEndInAWholeRun) {
  Shim shim(folder_ / "report");
  for (const i64 stride : {7, 11, 23}) {
    restore();
    i64 kills = 0;
    for (i64 k = stride; kills < 12; k += stride) {
      // A session of its own each, killed later and later: during resume, clean-up, saves.
      const Ended ended = shim.run(run_, {.action = Action::kKill, .at = k});
      if (!ended.killed()) {
        EXPECT_EQ(ended.code(), 0) << ended.text;
        break;
      }
      ++kills;
      expect_sound(run_, kBefore);
    }
    EXPECT_GE(kills, 2);
    expect_goes_on(run_);
  }
}

TEST_F(StorageFaults, OneFailingCallIsSurvived) {
  at_every_call({.action = Action::kFail, .error = EIO}, 60, [&](const Ended& ended) {
    EXPECT_TRUE(ended.code() == 0 || ended.code() == 6);
    expect_sound(run_, ended.code() == 0 ? kAfter : kBefore);
    if (ended.code() == 6) {
      EXPECT_NE(ended.text.find("Input/output error"), std::string::npos);
      expect_goes_on(run_);
    }
  });
}

TEST_F(StorageFaults, ADiskThatStaysFullIsSurvived) {
  Report full{.action = Action::kFail, .error = ENOSPC, .last = i64{1} << 40, .writes = 1};
  i64 stopped = 0;
  at_every_call(full, 25, [&](const Ended& ended) {
    EXPECT_TRUE(ended.code() == 0 || ended.code() == 6);
    expect_sound(run_, ended.code() == 0 ? kAfter : kBefore);
    if (ended.code() == 6) {
      ++stopped;
      EXPECT_NE(ended.text.find("No space left"), std::string::npos);
      EXPECT_NE(ended.text.find("free"), std::string::npos);
    }
    expect_goes_on(run_);
  });
  EXPECT_GT(stopped, 15);
}

TEST_F(StorageFaults, AnExceededQuotaIsSurvived) {
  at_every_call({.action = Action::kFail, .error = EDQUOT, .writes = 1}, 25,
                [&](const Ended& ended) {
                  EXPECT_TRUE(ended.code() == 0 || ended.code() == 6);
                  expect_sound(run_, ended.code() == 0 ? kAfter : kBefore);
                  if (ended.code() == 6) {
                    EXPECT_NE(ended.text.find("quota"), std::string::npos);
                  }
                });
}

TEST_F(StorageFaults, ShortWritesGoOn) {
  at_every_call({.action = Action::kShort}, 10, [&](const Ended& ended) {
    EXPECT_EQ(ended.code(), 0);
    expect_sound(run_, kAfter);
  });
}

// ---- without the shim

TEST_F(StorageFaults, AFileSizeLimitEndsWithSixAndTheOldCheckpoint) {
  restore();
  const Ended ended = run_saver(run_, kAfter, [] {
    const rlimit limit{.rlim_cur = 10'000, .rlim_max = 10'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_EQ(ended.code(), 6) << ended.text;
  EXPECT_NE(ended.text.find("ulimit -f"), std::string::npos) << ended.text;
  EXPECT_NE(ended.text.find("step-00000003) stands"), std::string::npos) << ended.text;
  expect_sound(run_, kBefore);
  expect_goes_on(run_);
}

TEST_F(StorageFaults, ARealFullDiskEndsWithSixAndTheOldCheckpoint) {
  // In a namespace of the child's own; it does the looking too, the mount goes with it.
  const pid_t child = ::fork();
  if (child == 0) {
    fs::create_directory(run_);
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", run_.c_str(), "tmpfs", 0, "size=256k") != 0) {
      ::_exit(77);
    }
    for (const auto& entry : fs::directory_iterator(base_)) {
      fs::copy(entry.path(), run_ + "/" + entry.path().filename().string(),
               fs::copy_options::recursive);
    }
    put_file(run_ + "/ballast", std::string(120'000, 'x'));
    const Ended full = run_saver(run_, kAfter);
    EXPECT_EQ(full.code(), 6) << full.text;
    EXPECT_NE(full.text.find("No space left"), std::string::npos) << full.text;
    EXPECT_NE(full.text.find("needed"), std::string::npos) << full.text;
    expect_sound(run_, kBefore);
    fs::remove(run_ + "/ballast");
    expect_goes_on(run_);
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "no permission to mount";
  }
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace penstock::io
