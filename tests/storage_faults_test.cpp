// Every call of whole commits fails, falls short, or is the last one of the process: the last
// checkpoint stands, the same command goes on from it, and no wrong file bears a final name.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>

#include "framework/io/checkpoint.h"
#include "framework/io/journal.h"
#include "framework/io/json.h"
#include "tests/faults/fault_shim.h"
#include "tests/faults/saver.h"
#include "tests/storage_helpers.h"

namespace penstock::io {
namespace {

namespace fs = std::filesystem;
using faults::Action;
using faults::Report;

constexpr i64 kBefore = 3;  // steps of the run before faults begin
constexpr i64 kAfter = 5;   // where the run with faults is to get to

struct Ended {
  int status = 0;
  std::string text;  // stdout and stderr
  bool killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
  int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

// Runs the saver on `folder` in a child that `prepare` has set up.
Ended run_saver(const std::string& folder, i64 last, const std::function<void()>& prepare = {}) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    if (prepare) {
      prepare();
    }
    ::execl(SAVER, SAVER, folder.c_str(), std::to_string(last).c_str(), nullptr);
    ::_exit(98);
  }
  ::close(ends[1]);
  Ended ended;
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; (got = ::read(ends[0], piece.data(), piece.size())) > 0;) {
    ended.text.append(piece.data(), std::size_t(got));
  }
  ::close(ends[0]);
  EXPECT_EQ(::waitpid(child, &ended.status, 0), child);
  return ended;
}

// The report that a preloaded shim shares with this process.
class Shim {
 public:
  explicit Shim(const std::string& path) : path_(path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(::ftruncate(fd, sizeof(Report)), 0);
    report_ = static_cast<Report*>(
        ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    ::close(fd);
  }
  ~Shim() { ::munmap(report_, sizeof(Report)); }
  Shim(const Shim&) = delete;
  Shim& operator=(const Shim&) = delete;

  Ended run(const std::string& folder, const Report& wanted) {
    *report_ = wanted;
    return run_saver(folder, kAfter, [&] {
      ::setenv("LD_PRELOAD", FAULT_SHIM, 1);
      ::setenv("FAULT_REPORT", path_.c_str(), 1);
      ::setenv("FAULT_ROOT", folder.c_str(), 1);
      // Sanitizers want to be loaded first; the shim only passes calls on to them.
      ::setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
    });
  }
  const Report& report() const { return *report_; }

 private:
  std::string path_;
  Report* report_ = nullptr;
};

class StorageFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(base_);
    ASSERT_EQ(run_saver(base_, kBefore).code(), 0);
    // What is not ours must survive everything.
    fs::create_directory(base_ + "/checkpoints/.tmp-mine");
    put_file(base_ + "/checkpoints/.tmp-mine/precious", "keep me");
    put_file(base_ + "/notes.txt", "keep me");
  }

  // A fresh copy of the run as it was before the faults.
  void restore() const {
    fs::remove_all(run_);
    fs::copy(base_, run_, fs::copy_options::recursive);
  }

  // The run folder after a fault: what it says is true.
  void expect_sound(i64 at_least) const {
    const CheckpointScan scan = scan_checkpoints(run_ + "/checkpoints");
    EXPECT_TRUE(scan.damaged.empty()) << scan.damaged.front().reason;
    ASSERT_FALSE(scan.valid.empty());
    for (const FoundCheckpoint& found : scan.valid) {
      const Checkpoint checkpoint(found.path);
      const i64 step = checkpoint.manifest().step;
      std::vector<float> w(std::size_t{faults::kWeights});
      const SafetensorsFile file = checkpoint.tensors(kModelFile);
      file.read(*file.find("w"), 0, faults::kWeights, DType::f32, w.data());
      EXPECT_EQ(w, faults::weights(step));
      EXPECT_EQ(checkpoint.text(kRunFile), format("{{\"step\":{}}}", step));
    }
    EXPECT_GE(scan.valid.back().manifest.step, at_least);
    const JournalReport journal = read_journal(run_ + "/metrics.jsonl", {});
    EXPECT_EQ(journal.malformed, 0);
    EXPECT_EQ(contents_of(run_ + "/checkpoints/.tmp-mine/precious"), "keep me");
    EXPECT_EQ(contents_of(run_ + "/notes.txt"), "keep me");
    if (fs::exists(run_ + "/summary.json")) {
      EXPECT_NO_THROW(Json::parse(contents_of(run_ + "/summary.json"), "summary.json"));
    }
  }

  // The same command again, with nothing in its way, ends where the run was to end.
  void expect_goes_on() const {
    const i64 newest = scan_checkpoints(run_ + "/checkpoints").valid.back().manifest.step;
    const Ended again = run_saver(run_, kAfter);
    EXPECT_EQ(again.code(), 0) << again.text;
    EXPECT_NE(again.text.find(format("resumed from {}\n", newest)), std::string::npos)
        << again.text;
    expect_sound(newest);
    for (const std::string& name : list_folder(run_ + "/checkpoints")) {
      const bool left = (name.starts_with(".tmp-") && name != ".tmp-mine") ||
                        name.starts_with(".old-") || name.starts_with("..tmp");
      EXPECT_FALSE(left) << name;
    }
    for (const std::string& name : list_folder(run_)) {
      EXPECT_FALSE(name.starts_with(".")) << name;
    }
    i64 before = 0;
    read_journal(run_ + "/metrics.jsonl", {.line = [&](std::string_view line) {
                   const Json json = Json::parse(line, "metrics.jsonl");
                   const i64 step = i64(json.find("step")->number().value());
                   EXPECT_GT(step, before);
                   before = step;
                 }});
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

  TestFolder folder_;
  std::string base_ = folder_ / "base";
  std::string run_ = folder_ / "run";
};

TEST_F(StorageFaults, AKillAtAnyCallLosesNothingCommitted) {
  at_every_call({.action = Action::kKill}, 60, [&](const Ended& ended) {
    EXPECT_TRUE(ended.killed());
    expect_sound(kBefore);
    expect_goes_on();
  });
}

TEST_F(StorageFaults, AKillInTheMiddleOfAWriteLosesNothingCommitted) {
  at_every_call({.action = Action::kTearAndKill}, 60, [&](const Ended& ended) {
    EXPECT_TRUE(ended.killed());
    expect_sound(kBefore);
    expect_goes_on();
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
      expect_sound(kBefore);
    }
    EXPECT_GE(kills, 2);
    expect_goes_on();
  }
}

TEST_F(StorageFaults, OneFailingCallIsSurvived) {
  at_every_call({.action = Action::kFail, .error = EIO}, 60, [&](const Ended& ended) {
    EXPECT_TRUE(ended.code() == 0 || ended.code() == 6);
    expect_sound(ended.code() == 0 ? kAfter : kBefore);
    if (ended.code() == 6) {
      EXPECT_NE(ended.text.find("Input/output error"), std::string::npos);
      expect_goes_on();
    }
  });
}

TEST_F(StorageFaults, ADiskThatStaysFullIsSurvived) {
  Report full{.action = Action::kFail, .error = ENOSPC, .last = i64{1} << 40, .writes = 1};
  i64 stopped = 0;
  at_every_call(full, 25, [&](const Ended& ended) {
    EXPECT_TRUE(ended.code() == 0 || ended.code() == 6);
    expect_sound(ended.code() == 0 ? kAfter : kBefore);
    if (ended.code() == 6) {
      ++stopped;
      EXPECT_NE(ended.text.find("No space left"), std::string::npos);
      EXPECT_NE(ended.text.find("free"), std::string::npos);
    }
    expect_goes_on();
  });
  EXPECT_GT(stopped, 15);
}

TEST_F(StorageFaults, AnExceededQuotaIsSurvived) {
  at_every_call({.action = Action::kFail, .error = EDQUOT, .writes = 1}, 25,
                [&](const Ended& ended) {
                  EXPECT_TRUE(ended.code() == 0 || ended.code() == 6);
                  expect_sound(ended.code() == 0 ? kAfter : kBefore);
                  if (ended.code() == 6) {
                    EXPECT_NE(ended.text.find("quota"), std::string::npos);
                  }
                });
}

TEST_F(StorageFaults, ShortWritesGoOn) {
  at_every_call({.action = Action::kShort}, 10, [&](const Ended& ended) {
    EXPECT_EQ(ended.code(), 0);
    expect_sound(kAfter);
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
  expect_sound(kBefore);
  expect_goes_on();
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
    expect_sound(kBefore);
    fs::remove(run_ + "/ballast");
    expect_goes_on();
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
