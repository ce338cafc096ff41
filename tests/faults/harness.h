// Runs the saver in a child, with or without the fault shim, and says whether the run folder that
// it leaves is sound.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "framework/io/checkpoint.h"
#include "framework/io/journal.h"
#include "framework/io/json.h"
#include "tests/faults/fault_shim.h"
#include "tests/faults/saver.h"
#include "tests/storage_helpers.h"

namespace penstock::faults {

using namespace penstock::io;
namespace fs = std::filesystem;

inline constexpr i64 kBefore = 3;  // steps of the run before faults begin
inline constexpr i64 kAfter = 5;   // where the run with faults is to get to

struct Ended {
  int status = 0;
  std::string text;  // stdout and stderr
  bool killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
  int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

// Runs the saver on `folder` in a child that `prepare` has set up.
inline Ended run_saver(const std::string& folder, i64 last,
                       const std::function<void()>& prepare = {}) {
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
      ::setenv("FAULT_LOG", (path_ + ".log").c_str(), 1);
      // Sanitizers want to be loaded first; the shim only passes calls on to them.
      ::setenv("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0", 1);
    });
  }
  const Report& report() const { return *report_; }
  // What the last run did to its files; see Entry.
  std::string log() const { return contents_of(path_ + ".log"); }

 private:
  std::string path_;
  Report* report_ = nullptr;
};

// The run folder after a fault: what it says is true.
inline void expect_sound(const std::string& run, i64 at_least) {
  const CheckpointScan scan = scan_checkpoints(run + "/checkpoints");
  EXPECT_TRUE(scan.damaged.empty()) << scan.damaged.front().reason;
  ASSERT_FALSE(scan.valid.empty());
  for (const FoundCheckpoint& found : scan.valid) {
    const Checkpoint checkpoint(found.path);
    const i64 step = checkpoint.manifest().step;
    std::vector<float> w(std::size_t{kWeights});
    const SafetensorsFile file = checkpoint.tensors(kModelFile);
    file.read(*file.find("w"), 0, kWeights, DType::f32, w.data());
    EXPECT_EQ(w, weights(step));
    EXPECT_EQ(checkpoint.text(kRunFile), format("{{\"step\":{}}}", step));
  }
  EXPECT_GE(scan.valid.back().manifest.step, at_least);
  const JournalReport journal = read_journal(run + "/metrics.jsonl", {});
  EXPECT_EQ(journal.malformed, 0);
  EXPECT_EQ(contents_of(run + "/checkpoints/.tmp-mine/precious"), "keep me");
  EXPECT_EQ(contents_of(run + "/notes.txt"), "keep me");
  if (fs::exists(run + "/summary.json")) {
    EXPECT_NO_THROW(Json::parse(contents_of(run + "/summary.json"), "summary.json"));
  }
}

// The same command again, with nothing in its way, ends where the run was to end.
inline void expect_goes_on(const std::string& run) {
  const i64 newest = scan_checkpoints(run + "/checkpoints").valid.back().manifest.step;
  const Ended again = run_saver(run, kAfter);
  EXPECT_EQ(again.code(), 0) << again.text;
  EXPECT_NE(again.text.find(format("resumed from {}\n", newest)), std::string::npos) << again.text;
  expect_sound(run, newest);
  for (const std::string& name : list_folder(run + "/checkpoints")) {
    const bool left = (name.starts_with(".tmp-") && name != ".tmp-mine") ||
                      name.starts_with(".old-") || name.starts_with("..tmp");
    EXPECT_FALSE(left) << name;
  }
  for (const std::string& name : list_folder(run)) {
    EXPECT_FALSE(name.starts_with(".")) << name;
  }
  i64 before = 0;
  read_journal(run + "/metrics.jsonl", {.line = [&](std::string_view line) {
                 const Json json = Json::parse(line, "metrics.jsonl");
                 const i64 step = i64(json.find("step")->number().value());
                 EXPECT_GT(step, before);
                 before = step;
               }});
}

// A run of kBefore steps, with things beside it that are not ours and must survive everything.
inline void make_run(const std::string& run) {
  fs::create_directory(run);
  ASSERT_EQ(run_saver(run, kBefore).code(), 0);
  // What is not ours must survive everything.
  fs::create_directory(run + "/checkpoints/.tmp-mine");
  put_file(run + "/checkpoints/.tmp-mine/precious", "keep me");
  put_file(run + "/notes.txt", "keep me");
}

}  // namespace penstock::faults
