// Files, folders and locks: a name holds the old contents or the new ones, and errors say what,
// where and why.
#include "framework/io/files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <set>

#include "framework/io/lock.h"
#include "tests/storage_helpers.h"

namespace penstock::io {
namespace {

namespace fs = std::filesystem;

TEST(StorageFiles, AnUnfinishedFileIsRemoved) {
  const TestFolder folder;
  {
    OutputFile out(folder / "a");
    out.write("begun");
    EXPECT_TRUE(fs::exists(folder / "a"));
  }
  EXPECT_FALSE(fs::exists(folder / "a"));
  OutputFile out(folder / "a");
  out.write("whole");
  out.finish();
  EXPECT_EQ(out.bytes(), 5);
  EXPECT_EQ(out.checksum(), file_checksum(folder / "a"));
  EXPECT_EQ(contents_of(folder / "a"), "whole");
}

TEST(StorageFiles, AnExistingFileOrLinkIsNeverWrittenThrough) {
  const TestFolder folder;
  put_file(folder / "precious", "keep me");
  EXPECT_THROW(OutputFile(folder / "precious"), FileError);
  fs::create_symlink(folder / "precious", folder / "link");
  EXPECT_THROW(OutputFile(folder / "link"), FileError);
  replace_file(folder / "link", "new");
  EXPECT_EQ(contents_of(folder / "precious"), "keep me");
  EXPECT_EQ(contents_of(folder / "link"), "new");
  EXPECT_FALSE(fs::is_symlink(folder / "link"));
}

TEST(StorageFiles, AReplacementThatIsGivenUpLeavesTheOldFile) {
  const TestFolder folder;
  put_file(folder / "a", "old");
  {
    ReplacedFile file(folder / "a");
    file.out().write("new");
  }
  EXPECT_EQ(contents_of(folder / "a"), "old");
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"a"});
  replace_file(folder / "a", "new");
  EXPECT_EQ(contents_of(folder / "a"), "new");
  EXPECT_EQ(list_folder(folder.path()), std::vector<std::string>{"a"});
}

TEST(StorageFiles, OnlyRegularFilesAreReadAndAFifoDoesNotBlock) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_THROW(InputFile(folder / "fifo"), StorageError);
  EXPECT_THROW(InputFile{folder.path()}, StorageError);
  EXPECT_THROW(InputFile("/dev/zero"), StorageError);
  put_file(folder / "a", "text");
  fs::create_symlink("a", folder / "link");
  EXPECT_EQ(InputFile(folder / "link").size(), 4);
  EXPECT_THROW(InputFile(folder / "link", Links::kRefuse), FileError);
  const std::string text = message_of<FileError>([&] { const InputFile file(folder / "none"); });
  EXPECT_NE(text.find("open"), std::string::npos);
  EXPECT_NE(text.find(folder / "none"), std::string::npos);
}

TEST(StorageFiles, AFileThatShrinksIsNamedWithBothSizes) {
  const TestFolder folder;
  put_file(folder / "a", std::string(1000, 'x'));
  const InputFile file(folder / "a");
  ASSERT_EQ(::truncate((folder / "a").c_str(), 300), 0);
  std::vector<std::byte> bytes(500);
  const std::string text = message_of<StorageError>([&] { file.read(100, bytes); });
  EXPECT_NE(text.find("500 bytes at offset 100"), std::string::npos) << text;
  EXPECT_NE(text.find("after 200"), std::string::npos) << text;
  EXPECT_NE(text.find("1000 bytes when it was opened"), std::string::npos) << text;
}

TEST(StorageFiles, TextIsReadUpToALimit) {
  const TestFolder folder;
  put_file(folder / "a", "12345");
  EXPECT_EQ(read_text(folder / "a", 5), "12345");
  EXPECT_THROW(read_text(folder / "a", 4), StorageError);
}

TEST(StorageFiles, FullErrorsNameNeededAndFreeBytesAndARemedy) {
  const std::map<int, std::string> remedies = {
      {ENOSPC, "free some space"}, {EDQUOT, "quota"}, {EFBIG, "ulimit -f"}};
  for (const auto& [error, remedy] : remedies) {
    errno = error;
    try {
      throw_file_error("write", "/tmp/model.safetensors", 12345);
    } catch (const FileError& e) {
      const std::string text = e.what();
      EXPECT_TRUE(e.full());
      EXPECT_EQ(e.code(), ExitCode::kStorage);
      EXPECT_NE(text.find("write /tmp/model.safetensors"), std::string::npos) << text;
      EXPECT_NE(text.find("12345 bytes) needed"), std::string::npos) << text;
      EXPECT_NE(text.find("free"), std::string::npos) << text;
      EXPECT_NE(text.find(remedy), std::string::npos) << text;
    }
  }
  errno = EIO;
  try {
    throw_file_error("sync", "/tmp/a");
  } catch (const FileError& e) {
    EXPECT_FALSE(e.full());
  }
}

TEST(StorageFiles, SpaceThatCertainlyIsMissingIsRefusedAtOnce) {
  const TestFolder folder;
  ASSERT_TRUE(free_bytes(folder.path()));
  EXPECT_EQ(free_bytes(folder / "not/yet/there").has_value(), true);
  EXPECT_NO_THROW(require_space(folder.path(), 1));
  const std::string text =
      message_of<FileError>([&] { require_space(folder.path(), i64{1} << 60); });
  EXPECT_NE(text.find("needed"), std::string::npos) << text;
}

TEST(StorageFiles, AFileSizeLimitIsAnErrorAndNotTheEndOfTheProcess) {
  const TestFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 10'000, .rlim_max = 10'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      replace_file(folder / "a", std::string(20'000, 'x'));
    } catch (const FileError& e) {
      ::_exit(e.facts().error == EFBIG && e.full() ? 42 : 1);
    }
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_TRUE(list_folder(folder.path()).empty());
}

TEST(StorageFiles, AFolderThatHoldsSomethingStrangeIsNotRemoved) {
  const TestFolder folder;
  const std::string flat = folder / "flat";
  EXPECT_TRUE(make_folder(flat));
  EXPECT_FALSE(make_folder(flat));
  put_file(flat + "/a", "1");
  put_file(flat + "/b", "2");
  fs::create_directory(flat + "/deeper");
  EXPECT_THROW(remove_flat_folder(flat), FileError);
  EXPECT_EQ(list_folder(flat), (std::vector<std::string>{"a", "b", "deeper"}));
  fs::remove(flat + "/deeper");
  fs::create_symlink("/etc", flat + "/link");
  EXPECT_THROW(remove_flat_folder(flat), FileError);
  fs::remove(flat + "/link");
  remove_flat_folder(flat);
  EXPECT_FALSE(fs::exists(flat));
  fs::create_directory(folder / "real");
  fs::create_symlink("real", folder / "link");
  EXPECT_THROW(remove_flat_folder(folder / "link"), FileError);
  EXPECT_TRUE(fs::exists(folder / "real"));
  put_file(folder / "file", "");
  EXPECT_THROW(make_folder(folder / "file"), FileError);
}

TEST(StorageFiles, TheProbeOfAFolderLeavesNothingAndNamesWhatFails) {
  const TestFolder folder;
  probe_folder(folder.path(), "probe");
  EXPECT_TRUE(list_folder(folder.path()).empty());
  const std::string text = message_of<FileError>([&] { probe_folder(folder / "none", "probe"); });
  EXPECT_NE(text.find("create"), std::string::npos) << text;
}

TEST(StorageFiles, ParentsOfPaths) {
  EXPECT_EQ(parent_of("a/b"), "a");
  EXPECT_EQ(parent_of("b"), ".");
  EXPECT_EQ(parent_of("/b"), "/");
  EXPECT_EQ(parent_of("/"), "/");
  EXPECT_EQ(parent_of("a//b//"), "a");
  EXPECT_EQ(parent_of("/a/b/"), "/a");
}

TEST(StorageFiles, NamesFromFilesAreQuotedInPrintableAscii) {
  EXPECT_EQ(in_quotes("plain"), "\"plain\"");
  EXPECT_EQ(in_quotes("a\"\\\n\x1b\xc3"), "\"a\\x22\\x5c\\x0a\\x1b\\xc3\"");
  EXPECT_EQ(in_quotes(std::string(1000, 'x'), 4), "\"xxxx\"... (1000 bytes)");
}

TEST(StorageFiles, SuffixesDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string suffix = random_suffix();
    EXPECT_EQ(suffix.size(), 8u);
    seen.insert(suffix);
  }
  EXPECT_GT(seen.size(), 990u);
}

TEST(StorageFiles, OnlyLeftoversOfReplacementsAreRemoved) {
  const TestFolder folder;
  const std::vector<std::string> foreign = {".hidden", ".notes.penstock-",
                                            ".notes.penstock-12345678.txt",
                                            ".notes.penstock-1234567X", "a.penstock-12345678"};
  for (const std::string& name : foreign) {
    put_file(folder / name, "");
  }
  put_file(folder / ".summary.json.penstock-0123abcd", "");
  remove_unfinished(folder.path());
  EXPECT_EQ(list_folder(folder.path()), foreign);
  // A temporary of today has such a name.
  ReplacedFile file(folder / "summary.json");
  remove_unfinished(folder.path());
  EXPECT_EQ(list_folder(folder.path()), foreign);
}

TEST(StorageFiles, NoDescriptorLeaks) {
  const auto open_files = [] { return list_folder("/proc/self/fd").size(); };
  const TestFolder folder;
  const std::size_t before = open_files();
  for (int i = 0; i < 20; ++i) {
    replace_file(folder / "a", "text");
    (void)read_text(folder / "a", 10);
    EXPECT_THROW(OutputFile(folder / "a"), FileError);
    sync_folder(folder.path());
    const RunLock lock(folder.path());
    EXPECT_THROW(RunLock{folder.path()}, StorageError);
  }
  EXPECT_EQ(open_files(), before);
}

// ---- locks

TEST(StorageLock, ASecondProcessIsToldWhoHoldsTheFolder) {
  const TestFolder folder;
  int ready[2];
  int done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder.path());
    char c = 'x';
    if (::write(ready[1], &c, 1) != 1 || ::read(done[0], &c, 1) < 0) {
      ::_exit(1);
    }
    ::kill(::getpid(), SIGKILL);  // the lock goes with the process, however it ends
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  const std::string text = message_of<StorageError>([&] { const RunLock lock(folder.path()); });
  EXPECT_NE(text.find(std::to_string(child)), std::string::npos) << text;
  EXPECT_NE(text.find("host"), std::string::npos) << text;
  ASSERT_EQ(::write(done[1], &c, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_NO_THROW(RunLock{folder.path()});
  for (const int fd : {ready[0], ready[1], done[0], done[1]}) {
    ::close(fd);
  }
}

TEST(StorageLock, ALockFileThatIsNoFileIsRefused) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "run.lock").c_str(), 0600), 0);
  EXPECT_THROW(RunLock{folder.path()}, StorageError);
  fs::remove(folder / "run.lock");
  put_file(folder / "elsewhere", "keep me");
  fs::create_symlink("elsewhere", folder / "run.lock");
  EXPECT_THROW(RunLock{folder.path()}, StorageError);
  EXPECT_EQ(contents_of(folder / "elsewhere"), "keep me");
  EXPECT_THROW(RunLock{folder / "none"}, FileError);
}

TEST(StorageLock, TheIdentityOfARunStays) {
  const TestFolder folder;
  const std::string id = run_identity(folder.path());
  EXPECT_EQ(id.size(), 16u);
  EXPECT_EQ(run_identity(folder.path()), id);
  const TestFolder other;
  EXPECT_NE(run_identity(other.path()), id);
  for (const char* bad : {"", "short", "0123456789ABCDEF\n", "../../../etc/pas\n"}) {
    put_file(folder / "run.id", bad);
    EXPECT_THROW(run_identity(folder.path()), StorageError) << bad;
  }
}

}  // namespace
}  // namespace penstock::io
