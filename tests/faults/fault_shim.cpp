// A library to preload: counts the calls by which a process changes the files under one folder, and
// makes the k-th fail, fall short, or be the last thing that the process does.
#include "tests/faults/fault_shim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {

using penstock::faults::Action;
using penstock::faults::Done;
using penstock::faults::Entry;
using penstock::faults::Report;

constexpr int kDescriptors = 4096;

std::mutex g_mutex;
Report* g_report = nullptr;
char g_root[PATH_MAX];
char* g_ours[kDescriptors];  // paths of open files under the folder
int g_log = -1;

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

__attribute__((constructor)) void start() {
  const char* report = getenv("FAULT_REPORT");
  const char* root = getenv("FAULT_ROOT");
  if (report == nullptr || root == nullptr) {
    return;
  }
  snprintf(g_root, sizeof g_root, "%s", root);
  const int fd = next<int(const char*, int, ...)>("open")(report, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return;
  }
  void* map = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  g_report = map == MAP_FAILED ? nullptr : static_cast<Report*>(map);
  if (const char* log = getenv("FAULT_LOG"); log != nullptr) {
    g_log = next<int(const char*, int, ...)>("open")(
        log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  }
}

// Past this library's own write().
void put(const void* data, size_t size) {
  [[maybe_unused]] const long ignored = syscall(SYS_write, g_log, data, size);
}

void note(Done done, const char* path, const void* extra = nullptr, std::int64_t size = 0) {
  if (g_log < 0) {
    return;
  }
  const std::lock_guard lock(g_mutex);
  const Entry entry{done, std::int32_t(strlen(path)), size};
  put(&entry, sizeof entry);
  put(path, strlen(path));
  if (extra != nullptr) {
    put(extra, size_t(size));
  }
}

bool under_root(const char* path) {
  return g_report != nullptr && path != nullptr && strncmp(path, g_root, strlen(g_root)) == 0;
}

bool is_ours(int fd) {
  return g_report != nullptr && fd >= 0 && fd < kDescriptors && g_ours[fd] != nullptr;
}

enum class Verdict { kGo, kFail, kHalf, kHalfThenKill };

// Counts a call; does not return when it is the one to be killed at.
Verdict judge(const char* name, bool needs_room, bool can_be_half) {
  const std::lock_guard lock(g_mutex);
  Report& r = *g_report;
  if ((r.writes != 0 && !needs_room) || (r.action == Action::kShort && !can_be_half)) {
    return Verdict::kGo;
  }
  const std::int64_t call = ++r.calls;
  const std::int64_t last = r.action == Action::kFail ? r.last : r.at;
  if (r.action == Action::kNone || call < r.at || call > last) {
    return Verdict::kGo;
  }
  if (++r.fired == 1) {
    snprintf(r.name, sizeof r.name, "%s", name);
  }
  switch (r.action) {
    case Action::kFail: errno = r.error; return Verdict::kFail;
    case Action::kShort: return Verdict::kHalf;
    case Action::kTearAndKill:
      if (can_be_half) {
        return Verdict::kHalfThenKill;
      }
      [[fallthrough]];
    default: ::kill(::getpid(), SIGKILL);
  }
  for (;;) {
    ::pause();
  }
}

template <class Write>
ssize_t judged_write(const char* name, int fd, size_t size, Write write) {
  if (!is_ours(fd)) {
    return write(size);
  }
  switch (judge(name, true, size > 1)) {
    case Verdict::kFail: return -1;
    case Verdict::kHalf: return write(size / 2);
    case Verdict::kHalfThenKill:
      write(size / 2);
      ::kill(::getpid(), SIGKILL);
      ::pause();
      return -1;
    default: return write(size);
  }
}

struct Call {
  const char* name;
  bool ours;
  bool needs_room = false;
};
// Makes the call unless it is one to fail, and notes it where it succeeded.
template <class Make, class Note>
int judged(const Call& call, Make make, Note note_it) {
  if (call.ours && judge(call.name, call.needs_room, false) == Verdict::kFail) {
    return -1;
  }
  const int result = make();
  if (call.ours && result >= 0) {
    const int saved = errno;
    note_it();
    errno = saved;
  }
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  const bool ours = under_root(path);
  const bool creates = (flags & O_CREAT) != 0;
  const int fd = judged(
      {creates ? "create" : "open", ours, creates},
      [&] { return next<int(const char*, int, ...)>("open")(path, flags, mode); },
      [&] {
        if (creates) {
          note(Done::kCreate, path);
        }
      });
  if (fd >= 0 && fd < kDescriptors) {
    g_ours[fd] = ours ? strdup(path) : nullptr;
  }
  return fd;
}

ssize_t write(int fd, const void* data, size_t size) {
  return judged_write("write", fd, size, [&](size_t n) {
    const ssize_t written = next<ssize_t(int, const void*, size_t)>("write")(fd, data, n);
    if (written > 0 && is_ours(fd)) {
      note(Done::kWrite, g_ours[fd], data, written);
    }
    return written;
  });
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  return judged_write("pwrite", fd, size, [&](size_t n) {
    return next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, data, n, at);
  });
}

int fsync(int fd) {
  return judged(
      {"fsync", is_ours(fd)}, [&] { return next<int(int)>("fsync")(fd); },
      [&] { note(Done::kSync, g_ours[fd]); });
}

int ftruncate(int fd, off_t size) {
  return judged(
      {"ftruncate", is_ours(fd)}, [&] { return next<int(int, off_t)>("ftruncate")(fd, size); },
      [&] { note(Done::kTruncate, g_ours[fd], nullptr, size); });
}

int close(int fd) {
  // The descriptor is gone in any case, as the system does it.
  const bool ours = is_ours(fd);
  if (ours) {
    free(g_ours[fd]);
    g_ours[fd] = nullptr;
  }
  const int result = next<int(int)>("close")(fd);
  return ours && judge("close", false, false) == Verdict::kFail ? -1 : result;
}

int rename(const char* from, const char* to) {
  return judged(
      {"rename", under_root(from), true},
      [&] { return next<int(const char*, const char*)>("rename")(from, to); },
      [&] { note(Done::kRename, from, to, std::int64_t(strlen(to))); });
}

int unlink(const char* path) {
  return judged(
      {"unlink", under_root(path)}, [&] { return next<int(const char*)>("unlink")(path); },
      [&] { note(Done::kUnlink, path); });
}

int unlinkat(int fd, const char* name, int flags) {
  return judged(
      {"unlinkat", is_ours(fd)},
      [&] { return next<int(int, const char*, int)>("unlinkat")(fd, name, flags); },
      [&] {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", g_ours[fd], name);
        note(Done::kUnlink, path);
      });
}

int mkdir(const char* path, mode_t mode) {
  return judged(
      {"mkdir", under_root(path), true},
      [&] { return next<int(const char*, mode_t)>("mkdir")(path, mode); },
      [&] { note(Done::kMkdir, path); });
}

int rmdir(const char* path) {
  return judged(
      {"rmdir", under_root(path)}, [&] { return next<int(const char*)>("rmdir")(path); },
      [&] { note(Done::kRmdir, path); });
}

}  // extern "C"
