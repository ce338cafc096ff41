// Runs the penstock program as its users do: arguments in, exit code and text out.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace penstock::program {

struct Result {
  int code = -1;   // exit code; 128 + signal when killed
  std::string out, err;
};

struct Options {
  int kill_after_ms = -1;  // SIGKILL then; negative: never
  int signal = SIGKILL;
  std::vector<std::string> environment;  // "NAME=value", beside the present one
};

inline Result run(const std::vector<std::string>& arguments, const Options& options = {}) {
  int out[2];
  int err[2];
  if (pipe(out) != 0 || pipe(err) != 0) {
    return {};
  }
  std::vector<std::string> all = {PENSTOCK_PROGRAM};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    dup2(err[1], 2);
    for (const int fd : {out[0], out[1], err[0], err[1]}) {
      close(fd);
    }
    for (const std::string& e : options.environment) {
      putenv(const_cast<char*>(e.c_str()));
    }
    std::vector<char*> argv;
    for (std::string& a : all) {
      argv.push_back(a.data());
    }
    argv.push_back(nullptr);
    execv(PENSTOCK_PROGRAM, argv.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  Result result;
  const auto begin = std::chrono::steady_clock::now();
  bool killed = false;
  pollfd fds[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  int open = 2;
  while (open > 0) {
    poll(fds, 2, 20);
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
    if (!killed && options.kill_after_ms >= 0 && ms >= options.kill_after_ms) {
      kill(child, options.signal);
      killed = true;
    }
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd >= 0 && fds[i].revents != 0) {
        char buffer[65536];
        const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
        if (n <= 0) {
          close(fds[i].fd);
          fds[i].fd = -1;
          --open;
        } else {
          (i == 0 ? result.out : result.err).append(buffer, std::size_t(n));
        }
      }
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// A folder that is gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace penstock::program
