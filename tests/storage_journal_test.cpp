// Journals: complete lines only, sessions and gaps marked, no exception for a full disk.
#include "framework/io/journal.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/storage_helpers.h"

namespace penstock::io {
namespace {

std::vector<std::string> records(const std::string& path, bool superseded = false,
                                 JournalReport* report = nullptr) {
  std::vector<std::string> lines;
  const JournalReport read = read_journal(
      path, {.superseded = superseded, .line = [&](std::string_view l) { lines.emplace_back(l); }});
  if (report != nullptr) {
    *report = read;
  }
  return lines;
}

std::string record(i64 step) {
  return format("{{\"step\":{}}}", step);
}

TEST(StorageJournal, LinesComeBackInOrder) {
  const TestFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    Journal journal({.path = path}, {.run = "abc"});
    for (int i = 1; i <= 3; ++i) {
      journal.write(record(i));
    }
    EXPECT_TRUE(journal.sync());
    EXPECT_EQ(journal.waiting(), 0);
  }
  JournalReport report;
  EXPECT_EQ(records(path, false, &report),
            (std::vector<std::string>{record(1), record(2), record(3)}));
  EXPECT_EQ(report.lines, 4);
  ASSERT_EQ(report.sessions.size(), 1u);
  EXPECT_EQ(report.sessions[0].run, "abc");
}

TEST(StorageJournal, ATornLastLineIsCutAndToldOf) {
  const TestFolder folder;
  const std::string path = folder / "metrics.jsonl";
  { Journal(Journal::Options{.path = path}, {.run = "abc"}).write(record(1)); }
  put_file(path, contents_of(path) + "{\"step\":2,\"lo");
  JournalReport report;
  EXPECT_EQ(records(path, false, &report).size(), 1u);
  EXPECT_EQ(report.torn_bytes, 13);
  EXPECT_EQ(report.malformed, 0);
  {
    Journal(Journal::Options{.path = path}, {.run = "abc", .step = 1, .position = 64})
        .write(record(2));
  }
  EXPECT_EQ(records(path, false, &report), (std::vector<std::string>{record(1), record(2)}));
  EXPECT_EQ(report.torn_bytes, 0);
  ASSERT_EQ(report.sessions.size(), 2u);
  EXPECT_EQ(report.sessions[1].step, 1);
  EXPECT_EQ(report.sessions[1].position, 64);
  EXPECT_NE(contents_of(path).find("\"torn_bytes\":13"), std::string::npos);
}

TEST(StorageJournal, AFileOfOneTornLineBecomesEmpty) {
  const TestFolder folder;
  put_file(folder / "j", std::string(200'000, 'x'));
  { const Journal journal({.path = folder / "j"}, {}); }
  JournalReport report = read_journal(folder / "j", {});
  EXPECT_EQ(report.lines, 1);
  EXPECT_EQ(report.sessions.size(), 1u);
}

TEST(StorageJournal, StepsRiseThroughRepeatedResumes) {
  const TestFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const auto session = [&](i64 from, i64 to) {
    Journal journal({.path = path}, {.run = "abc", .step = from});
    for (i64 s = from + 1; s <= to; ++s) {
      journal.write(record(s));
    }
  };
  session(0, 5);
  session(3, 8);
  session(2, 4);
  EXPECT_EQ(records(path), (std::vector<std::string>{record(1), record(2), record(3), record(4)}));
  EXPECT_EQ(records(path, true).size(), 12u);
}

TEST(StorageJournal, WhatAFullDiskRefusesIsWrittenLater) {
  const TestFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    Journal journal({.path = path, .retry_seconds = 0}, {.run = "abc"});
    const auto limit = [](rlim_t bytes) {
      const rlimit l{.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &l);
    };
    limit(1'000);  // in the middle of a line
    for (int i = 1; i <= 100; ++i) {
      journal.write(record(i));
    }
    const bool waited = journal.waiting() > 10 && !journal.sync() && journal.lost() == 0;
    limit(RLIM_INFINITY);
    ::_exit(waited && journal.sync() && journal.waiting() == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  JournalReport report;
  const auto lines = records(path, false, &report);
  ASSERT_EQ(lines.size(), 100u);
  for (int i = 1; i <= 100; ++i) {
    EXPECT_EQ(lines[std::size_t(i) - 1], record(i));
  }
  EXPECT_EQ(report.malformed, 0);
  EXPECT_EQ(report.gap_lines, 0);
}

TEST(StorageJournal, WhatTheRingCannotHoldIsAGapAtItsPlace) {
  const TestFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    Journal journal({.path = path, .ring_bytes = 200, .retry_seconds = 0}, {.run = "abc"});
    journal.write(record(1));
    const auto limit = [](rlim_t bytes) {
      const rlimit l{.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &l);
    };
    limit(rlim_t(contents_of(path).size() + 5));
    for (int i = 2; i <= 100; ++i) {
      journal.write(record(i));
    }
    const i64 lost = journal.lost();
    limit(RLIM_INFINITY);
    ::_exit(lost > 50 && lost < 99 && journal.sync() ? int(lost) : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  const int lost = WEXITSTATUS(status);
  ASSERT_GT(lost, 0);
  JournalReport report;
  const auto lines = records(path, false, &report);
  EXPECT_EQ(report.gap_lines, lost);
  EXPECT_EQ(report.malformed, 0);
  EXPECT_EQ(lines.size(), std::size_t(100 - lost));
  EXPECT_EQ(lines.front(), record(1));
  EXPECT_EQ(lines.back(), record(100));
  i64 before = 0;
  for (const std::string& line : lines) {
    const i64 step = std::stoll(line.substr(8));
    EXPECT_GT(step, before);
    before = step;
  }
}

TEST(StorageJournal, ARecordIsOneLine) {
  const TestFolder folder;
  Journal journal({.path = folder / "j"}, {});
  EXPECT_THROW(journal.write("{\"a\":\n1}"), Error);
  EXPECT_THROW(journal.write(""), Error);
}

TEST(StorageJournal, ThreadsDoNotMixTheirLines) {
  const TestFolder folder;
  {
    Journal journal({.path = folder / "j"}, {});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&journal, t] {
        for (int i = 0; i < 250; ++i) {
          journal.write(
              format("{{\"thread\":{},\"text\":\"{}\"}}", t, std::string(200, char('a' + t))));
        }
      });
    }
    for (std::thread& t : threads) {
      t.join();
    }
  }
  const JournalReport report = read_journal(folder / "j", {});
  EXPECT_EQ(report.lines, 1001);
  EXPECT_EQ(report.malformed, 0);
}

TEST(StorageJournal, HostileLinesAreCountedAndLeftOut) {
  const TestFolder folder;
  const std::string deep = std::string(100'000, '[');
  put_file(folder / "j",
           "{\"step\":1}\n\nnull\n[1]\n{\"step\":2\n{\"step\":-5}\n{\"step\":1e999}\n" + deep +
               "\n{\"step\":99999999999999999999999}\n" + std::string("{\"a\":\0}\n", 8) +
               "{\"\xff\":1}\n{\"session\":7}\n" + "{\"a\":{\"step\":9},\"step\":2}\n");
  JournalReport report;
  const auto lines = records(folder / "j", false, &report);
  EXPECT_EQ(report.lines, 13);
  EXPECT_EQ(report.lines, report.malformed + i64(lines.size()));
  EXPECT_TRUE(report.sessions.empty());
  EXPECT_EQ(lines.front(), "{\"step\":1}");
  EXPECT_EQ(lines.back(), "{\"a\":{\"step\":9},\"step\":2}");
  put_file(folder / "j", std::string(17 << 20, 'x'));
  EXPECT_THROW(read_journal(folder / "j", {}), StorageError);
}

}  // namespace
}  // namespace penstock::io
