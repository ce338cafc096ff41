// What handing a sample over costs when loading it costs next to nothing: rows of 784 bytes in
// memory and their labels, shuffled, through the loader. Microseconds a sample by workers and ring;
// the last line is JSON. loader_rows [--seconds N] [--rows N] [--batch N] [--workers 0|1|2]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/memory_set.h"
#include "framework/core/check.h"

namespace {

using namespace penstock;
using namespace penstock::data;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double process_cpu() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

std::shared_ptr<const Dataset> rows_in_memory(i64 count) {
  std::vector<MemorySet::Column> columns;
  std::vector<std::byte> pixels(std::size_t(count) * 784);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = std::byte(i * 31);
  }
  columns.push_back({.field = {.name = "image", .dtype = DType::u8, .shape = {28, 28, 1}},
                     .rows = std::move(pixels)});
  columns.push_back({.field = {.name = "label", .dtype = DType::i64, .shape = {}},
                     .rows = std::vector<std::byte>(std::size_t(count) * 8)});
  return std::make_shared<MemorySet>("rows", std::move(columns));
}

struct Row {
  int workers = 0;
  i64 ring = 0;
  double wall = 0;  // microseconds a sample
  double cpu = 0;
};

// The best of three windows: others' work on the machine only ever adds.
Row measure(const std::shared_ptr<const Dataset>& set, int workers, i64 ring, i64 batch,
            double seconds) {
  Loader loader(
      set,
      {.sampler = {.seed = 1}, .batch = batch, .workers = workers, .depth = 4, .max_bytes = ring});
  const auto one = [&] {
    const Batch b = loader.next(batch);
    loader.release(b);
    return b.count;
  };
  for (i64 seen = 0; seen < 4 * loader.slots();) {
    seen += one();
    if (seen > 400'000) {
      break;
    }
  }
  Row best{.workers = workers, .ring = ring};
  for (int window = 0; window < 3; ++window) {
    const double begin = seconds_now();
    const double cpu = process_cpu();
    i64 samples = 0;
    while (seconds_now() - begin < seconds) {
      samples += one();
    }
    const double wall_us = (seconds_now() - begin) / double(samples) * 1e6;
    const double cpu_us = (process_cpu() - cpu) / double(samples) * 1e6;
    best.wall = window == 0 ? wall_us : std::min(best.wall, wall_us);
    best.cpu = window == 0 ? cpu_us : std::min(best.cpu, cpu_us);
  }
  return best;
}

double option(int argc, char** argv, const std::string& name, double fallback) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (argv[i] == name) {
      return std::atof(argv[i + 1]);
    }
  }
  return fallback;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const double seconds = option(argc, argv, "--seconds", 0.3);
    const auto set = rows_in_memory(i64(option(argc, argv, "--rows", 60'000)));
    const auto batch = i64(option(argc, argv, "--batch", 256));
    const int only = int(option(argc, argv, "--workers", -1));
    std::vector<Row> rows;
    std::printf("%8s %12s %14s %14s\n", "workers", "ring MiB", "us/sample", "CPU us/sample");
    for (const i64 ring : {i64{8} << 20, i64{256} << 20}) {
      for (const int workers : {0, 1, 2}) {
        if (only >= 0 && workers != only) {
          continue;
        }
        rows.push_back(measure(set, workers, ring, batch, seconds));
        std::printf("%8d %12lld %14.3f %14.3f\n", workers, (long long)(ring >> 20),
                    rows.back().wall, rows.back().cpu);
      }
    }
    std::printf("{\"benchmark\":\"loader_rows\",\"batch\":%lld,\"rows\":[", (long long)batch);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::printf("%s{\"workers\":%d,\"ring_bytes\":%lld,\"us\":%.4f,\"cpu_us\":%.4f}",
                  i ? "," : "", rows[i].workers, (long long)rows[i].ring, rows[i].wall,
                  rows[i].cpu);
    }
    std::printf("]}\n");
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "loader_rows: %s\n", e.what());
    return 1;
  }
}
