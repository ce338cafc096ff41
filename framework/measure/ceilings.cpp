#include "framework/measure/ceilings.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "framework/core/check.h"
#include "framework/core/cuda.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/measure/clock.h"
#include "framework/measure/text_file.h"

namespace penstock::measure {
namespace {

constexpr i64 kCacheFileCap = 64 * 1024;
constexpr double kTriadSeconds = 0.5;
constexpr int kTriadPasses = 5;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "32768K" -> 33554432.
i64 parse_cache_size(const std::string& text) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  const i64 unit = *end == 'K' ? 1024 : *end == 'M' ? 1024 * 1024 : 1;
  return value > 0 && value < (1LL << 32) ? i64(value) * unit : 0;
}

// The highest cache level that a CPU describes: its size, and the CPUs that share it.
struct CacheDescription {
  int level = 0;
  i64 bytes = 0;
  std::string shared_by;
};
CacheDescription last_cache_of(int cpu) {
  CacheDescription best;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = format("/sys/devices/system/cpu/cpu{}/cache/index{}/", cpu, index);
    const int level = std::atoi(first_line(folder + "level").c_str());
    if (level > best.level && first_line(folder + "type") != "Instruction") {
      best = {level, parse_cache_size(first_line(folder + "size")),
              first_line(folder + "shared_cpu_list")};
    }
  }
  return best;
}

// Memory that is touched by the threads that will use it, so that it lies near them.
class Array {
 public:
  explicit Array(i64 count) : data_(static_cast<float*>(std::aligned_alloc(kAlign, bytes(count)))) {
    check(data_ != nullptr, "triad: {} do not fit in memory", bytes_text(double(bytes(count))));
    parallel::run(count, 1, [&](i64 begin, i64 end) {
      std::fill(data_.get() + begin, data_.get() + end, 1.0f);
    });
  }
  float* data() { return data_.get(); }

 private:
  static constexpr std::size_t kAlign = 2 * 1024 * 1024;
  static std::size_t bytes(i64 count) {
    return (std::size_t(count) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
  }
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  std::unique_ptr<float, Free> data_;
};

// Sets the number of compute threads for a scope.
class Threads {
 public:
  explicit Threads(int count) : before_(parallel::threads()) { parallel::set_threads(count); }
  ~Threads() { parallel::set_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 16> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%d", &parts);
  return {text.data(), length};
}

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') {
    return std::string(cache) + "/penstock";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache/penstock" : "";
}

// FNV-1a: a file name of fixed length for any key. The key itself stands in the file.
std::string file_name(const std::string& key) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : key) {
    hash = (hash ^ std::uint8_t(c)) * 0x100000001b3u;
  }
  return format("ceilings-{:x}.json", hash);
}

// A rate that a machine of this century may have.
bool plausible(double rate) {
  return std::isfinite(rate) && rate > 1e6 && rate < 1e19;
}

std::optional<Ceilings> read_cache(const std::string& path, const std::string& key) {
  const auto text = read_whole_file(path, kCacheFileCap);
  if (!text) {
    return std::nullopt;
  }
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (!json.is_object() || json.value("format", 0) != 1 || json.value("key", "") != key) {
    return std::nullopt;
  }
  Ceilings c;
  c.bytes_per_second = json.value("bytes_per_second", 0.0);
  c.source = "measured";
  c.date = json.value("date", "");
  if (!plausible(c.bytes_per_second) || c.date.size() > 32) {
    return std::nullopt;
  }
  const auto flops = json.find("flops");
  for (std::size_t p = 0; flops != json.end() && flops->is_object() && p < kPrecisions; ++p) {
    const auto value = flops->find(name_of(Precision(p)));
    if (value != flops->end() && value->is_number() && plausible(value->get<double>())) {
      c.flops[p] = value->get<double>();
    }
  }
  return c;
}

void write_cache(const std::string& path, const std::string& key, const Ceilings& c) {
  nlohmann::json json = {{"format", 1},
                         {"key", key},
                         {"bytes_per_second", c.bytes_per_second},
                         {"date", c.date},
                         {"flops", nlohmann::json::object()}};
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    if (c.flops[p]) {
      json["flops"][name_of(Precision(p))] = *c.flops[p];
    }
  }
  write_whole_file(path, json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::kF32: return "f32";
    case Precision::kTf32: return "tf32";
    case Precision::kF16: return "f16";
    case Precision::kBf16: return "bf16";
  }
  return "?";
}

std::optional<Precision> precision_named(const std::string& name) {
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    if (name == name_of(Precision(p))) {
      return Precision(p);
    }
  }
  return std::nullopt;
}

i64 last_level_cache() {
  std::set<std::string> seen;
  i64 total = 0;
  cpu_set_t granted;
  CPU_ZERO(&granted);
  const bool known = sched_getaffinity(0, sizeof(granted), &granted) == 0;
  const int cpus = std::min<int>(CPU_SETSIZE, int(sysconf(_SC_NPROCESSORS_CONF)));
  for (int cpu = 0; cpu < cpus; ++cpu) {
    if (known && !CPU_ISSET(cpu, &granted)) {
      continue;
    }
    const CacheDescription cache = last_cache_of(cpu);
    if (cache.bytes > 0 && seen.insert(cache.shared_by).second) {
      total += cache.bytes;
    }
  }
  return total > 0 ? total : i64(32) * 1024 * 1024;
}

double cpu_triad(int threads) {
  const Threads scope(threads);
  const i64 cache = last_level_cache();
  const i64 available = machine::available_memory();
  // Each array four caches; together four at the very least, and never most of what is left.
  const i64 bytes = std::min(4 * cache, available / 6);
  check(3 * bytes >= 4 * cache,
        "triad: its arrays must hold 4 x {} of cache, and only {} of memory are available",
        bytes_text(double(cache)), bytes_text(double(available)));
  const i64 count = bytes / i64(sizeof(float));
  Array a(count);
  Array b(count);
  Array c(count);
  double best = 0;
  const double start = monotonic_seconds();
  // The first pass warms up; the best of the rest is what the machine can do.
  for (int pass = 0; pass <= kTriadPasses || monotonic_seconds() - start < kTriadSeconds; ++pass) {
    const double begun = monotonic_seconds();
    parallel::run(count, 4096, [&](i64 begin, i64 end) {
      float* __restrict x = a.data();
      const float* __restrict y = b.data();
      const float* __restrict z = c.data();
      for (i64 i = begin; i < end; ++i) {
        x[i] = y[i] + 0.5f * z[i];
      }
    });
    const double seconds = monotonic_seconds() - begun;
    if (pass > 0 && seconds > 0) {
      best = std::max(best, 3.0 * double(sizeof(float)) * double(count) / seconds);
    }
  }
  return best;
}

std::string cpu_key(int threads) {
  return format("cpu: {}, {} threads, {}, cache {}", machine::cpu_name(), threads,
                machine::name_of(machine::isa()), last_level_cache());
}

std::string cuda_key() {
  const cuda::DeviceInfo& info = cuda::info();
  return format("cuda: {}, {}, peak {:.0f}, driver {}", info.name, info.uuid,
                info.peak_bytes_per_second, info.driver_version);
}

Ceilings ceilings(const std::string& key, const CeilingProbe& probe, const std::string& folder) {
  const std::string where = folder.empty() ? cache_folder() : folder;
  const std::string path = where.empty() ? "" : where + "/" + file_name(key);
  try {
    if (auto kept = path.empty() ? std::nullopt : read_cache(path, key)) {
      return *kept;
    }
  } catch (const std::exception& e) {
    log::debug("ceilings: {}; measured again", e.what());
  }
  Ceilings c{.bytes_per_second = probe.triad(), .source = "measured", .date = today()};
  check(plausible(c.bytes_per_second), "ceilings: the triad gave {} bytes a second",
        c.bytes_per_second);
  for (std::size_t p = 0; probe.matmul && p < kPrecisions; ++p) {
    c.flops[p] = probe.matmul(Precision(p));
  }
  try {
    if (!path.empty() && make_folders(where)) {
      write_cache(path, key, c);
    }
  } catch (const std::exception& e) {
    log::debug("ceilings: not kept for the next run: {}", e.what());
  }
  return c;
}

}  // namespace penstock::measure
