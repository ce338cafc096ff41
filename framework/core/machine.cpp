#include "framework/core/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "framework/core/check.h"

namespace penstock::machine {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<i64> parse_integer(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  i64 value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<int> cores_for(i64 quota, i64 period) {
  if (quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return int(std::min<i64>((quota + period - 1) / period, std::numeric_limits<int>::max()));
}

// The folders of this process's cgroup and its parents, innermost first; a limit may stand at any
// level. `controller` is empty for v2.
std::vector<std::string> cgroup_folders(const std::string& controller) {
  std::vector<std::string> folders;
  std::istringstream lines(read_text("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool mine = controller.empty() ? names == ",,"
                                         : names.find("," + controller + ",") != std::string::npos;
    if (!mine) {
      continue;
    }
    const std::string root = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
    std::string path = line.substr(second + 1);
    while (!path.empty() && path != "/") {
      folders.push_back(root + path);
      path.resize(path.rfind('/'));
    }
    folders.push_back(root);
  }
  return folders;
}

int read_cores() {
  int count = std::max(1, int(sysconf(_SC_NPROCESSORS_ONLN)));
  // Machines with more than 1024 CPUs need a larger set than cpu_set_t.
  for (int bits = 1024; bits <= 1 << 20; bits *= 4) {
    cpu_set_t* set = CPU_ALLOC(std::size_t(bits));
    const std::size_t bytes = CPU_ALLOC_SIZE(std::size_t(bits));
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    if (ok) {
      count = std::max(1, CPU_COUNT_S(bytes, set));
    }
    CPU_FREE(set);
    if (ok) {
      break;
    }
  }
  for (const std::string& folder : cgroup_folders("")) {
    if (const auto limit = parse_cpu_max(read_text(folder + "/cpu.max"))) {
      count = std::min(count, *limit);
    }
  }
  for (const std::string& folder : cgroup_folders("cpu")) {
    if (const auto limit = parse_cfs_quota(read_text(folder + "/cpu.cfs_quota_us"),
                                           read_text(folder + "/cpu.cfs_period_us"))) {
      count = std::min(count, *limit);
    }
  }
  return std::max(1, count);
}

i64 meminfo(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  i64 kib = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    if (fields >> name >> kib && name == key) {
      return kib * 1024;
    }
  }
  return 0;
}

// Calls f(limit, usage) for every cgroup memory limit above this process.
template <class F>
void for_each_memory_limit(F&& f) {
  for (const std::string& folder : cgroup_folders("")) {
    const auto limit = parse_memory_limit(read_text(folder + "/memory.max"));
    if (limit) {
      // Inactive file pages are reclaimed before anything fails.
      i64 usage = parse_integer(read_text(folder + "/memory.current")).value_or(0);
      std::istringstream stat(read_text(folder + "/memory.stat"));
      std::string name;
      i64 value = 0;
      while (stat >> name >> value) {
        if (name == "inactive_file") {
          usage -= value;
        }
      }
      f(*limit, std::max<i64>(0, usage));
    }
  }
  for (const std::string& folder : cgroup_folders("memory")) {
    if (const auto limit = parse_memory_limit(read_text(folder + "/memory.limit_in_bytes"))) {
      f(*limit, parse_integer(read_text(folder + "/memory.usage_in_bytes")).value_or(0));
    }
  }
}

Isa cpu_isa() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return Isa::kV4;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")) {
    return Isa::kV3;
  }
  return Isa::kBaseline;
}

std::atomic<int> g_isa{0};

}  // namespace

int cores() {
  static const int count = read_cores();
  return count;
}

i64 available_memory() {
  i64 available = meminfo("MemAvailable:");
  for_each_memory_limit([&](i64 limit, i64 usage) {
    available = std::min(available, std::max<i64>(0, limit - usage));
  });
  return available;
}

i64 total_memory() {
  i64 total = meminfo("MemTotal:");
  for_each_memory_limit([&](i64 limit, i64) { total = std::min(total, limit); });
  return total;
}

i64 resident_memory() {
  std::ifstream file("/proc/self/statm");
  i64 size = 0;
  i64 resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Isa isa() {
  int level = g_isa.load(std::memory_order_relaxed);
  if (level == 0) {
    level = int(cpu_isa());
    g_isa.store(level, std::memory_order_relaxed);
  }
  return Isa(level);
}

void set_isa(Isa level) {
  check(int(level) <= int(cpu_isa()), "isa: this CPU runs at most {}, {} was asked for",
        name_of(cpu_isa()), name_of(level));
  g_isa.store(int(level), std::memory_order_relaxed);
}

const char* name_of(Isa level) {
  switch (level) {
    case Isa::kBaseline: return "x86-64";
    case Isa::kV3: return "x86-64-v3";
    case Isa::kV4: return "x86-64-v4";
  }
  return "?";
}

std::optional<int> parse_cpu_max(std::string_view text) {
  const auto space = text.find(' ');
  if (space == std::string_view::npos) {
    return std::nullopt;
  }
  const auto quota = parse_integer(text.substr(0, space));  // "max" is no number
  const auto period = parse_integer(text.substr(space + 1));
  return quota && period ? cores_for(*quota, *period) : std::nullopt;
}

std::optional<int> parse_cfs_quota(std::string_view quota, std::string_view period) {
  const auto q = parse_integer(quota);
  const auto p = parse_integer(period);
  return q && p ? cores_for(*q, *p) : std::nullopt;
}

std::optional<i64> parse_memory_limit(std::string_view text) {
  const auto limit = parse_integer(text);
  constexpr i64 kUnlimited = i64(1) << 60;  // v1 writes a page-rounded 2^63 for "none"
  return limit && *limit >= 0 && *limit < kUnlimited ? limit : std::nullopt;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      const auto colon = line.find(": ");
      return colon == std::string::npos ? "unknown" : line.substr(colon + 2);
    }
  }
  return "unknown";
}

}  // namespace penstock::machine
