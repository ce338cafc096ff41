// Penstock's side of the peer comparison: the same files and crops through ImageDataset, workers
// that fill batch slots in order. Prints one JSON line; see README.md.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/image/image_dataset.h"
#include "framework/core/check.h"

namespace {

using namespace penstock;
using namespace penstock::data;
using namespace penstock::data::image;

struct Arguments {
  std::string root;
  std::string crops;  // written: "path x y width height flip" for every sample
  std::string save;   // written: the first samples' bytes
  i64 saved = 64;
  int workers = 2;
  i64 batch = 128;
  int epochs = 3;  // the first is not timed
  bool f32 = false;
  bool fast = false;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) {
        throw ConfigError("loader_peer: " + key + " needs a value");
      }
      return argv[++i];
    };
    if (key == "--root") {
      a.root = value();
    } else if (key == "--write-crops") {
      a.crops = value();
    } else if (key == "--save") {
      a.save = value();
    } else if (key == "--workers") {
      a.workers = std::stoi(value());
    } else if (key == "--batch") {
      a.batch = std::stoll(value());
    } else if (key == "--epochs") {
      a.epochs = std::stoi(value());
    } else if (key == "--track") {
      a.f32 = value() == "f32";
    } else if (key == "--quality") {
      a.fast = value() == "fast";
    } else {
      throw ConfigError("loader_peer: unknown option " + key);
    }
  }
  if (a.root.empty()) {
    throw ConfigError(
        "loader_peer --root FOLDER [--write-crops FILE] [--save FILE] [--workers N] [--batch N] "
        "[--epochs N] [--track u8|f32] [--quality matched|fast]");
  }
  return a;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void write_crops(const ImageDataset& dataset, const TransformOptions& transform,
                 const std::string& root, const std::string& path) {
  std::ofstream out(path);
  Decoder decoder;
  FetchBuffer raw;
  for (i64 i = 0; i < dataset.size(); ++i) {
    const SampleKey key{.index = i, .epoch = 0, .seed = 1};
    dataset.fetch(key, raw);
    const std::string name = dataset.describe(i);
    const Header header = decoder.open(raw, name, {});
    const Placement p = place(transform, key, header.width, header.height, name);
    out << name.substr(root.size() + 1) << ' ' << i64(p.x.begin) << ' ' << i64(p.y.begin) << ' '
        << i64(p.x.end - p.x.begin) << ' ' << i64(p.y.end - p.y.begin) << ' '
        << (p.x.mirrored ? 1 : 0) << '\n';
  }
}

// Slots filled in any order by workers, taken batch by batch in order.
class Ring {
 public:
  Ring(const ImageDataset& dataset, const Arguments& arguments)
      : dataset_(dataset),
        arguments_(arguments),
        image_bytes_(dataset.fields()[0].bytes()),
        slots_(4 * arguments.batch),
        images_(std::size_t(slots_ * image_bytes_)),
        labels_(std::size_t(slots_)),
        done_(std::size_t(slots_)) {
    for (int i = 0; i < arguments.workers; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }
  ~Ring() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    space_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Waits for the next `count` samples; release() gives their slots back.
  const std::byte* take(i64 count) {
    for (i64 i = 0; i < count; ++i) {
      std::atomic<i64>& done = done_[std::size_t((taken_ + i) % slots_)];
      for (i64 seen = done.load(std::memory_order_acquire); seen != taken_ + i + 1;
           seen = done.load(std::memory_order_acquire)) {
        done.wait(seen, std::memory_order_acquire);
      }
    }
    return images_.data() + (taken_ % slots_) * image_bytes_;
  }
  void release(i64 count) {
    {
      const std::lock_guard lock(mutex_);
      taken_ += count;
    }
    space_.notify_all();
  }

 private:
  void work() {
    FetchBuffer raw;
    for (;;) {
      const i64 position = next_.fetch_add(1);
      {
        std::unique_lock lock(mutex_);
        space_.wait(lock, [&] { return stop_ || position < taken_ + slots_; });
        if (stop_) {
          return;
        }
      }
      const i64 slot = position % slots_;
      const SampleKey key{.index = position % dataset_.size(), .epoch = 0, .seed = 1};
      std::byte* const fields[] = {
          reinterpret_cast<std::byte*>(images_.data()) + slot * image_bytes_,
          reinterpret_cast<std::byte*>(labels_.data() + slot)};
      dataset_.fetch(key, raw);
      dataset_.load(key, raw, fields);
      done_[std::size_t(slot)].store(position + 1, std::memory_order_release);
      done_[std::size_t(slot)].notify_one();
    }
  }

  const ImageDataset& dataset_;
  Arguments arguments_;
  i64 image_bytes_;
  i64 slots_;
  std::vector<std::byte> images_;
  std::vector<i64> labels_;
  std::vector<std::atomic<i64>> done_;
  std::atomic<i64> next_{0};
  std::mutex mutex_;
  std::condition_variable space_;
  i64 taken_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

int run(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  const TransformOptions transform{.quality = a.fast ? Quality::kFast : Quality::kMatched,
                                   .flip_horizontal = 0.5F,
                                   .normalise = a.f32};
  const double begin = seconds_now();
  const auto dataset = open_image_folder(a.root, {}, {.transform = transform});
  if (!a.crops.empty()) {
    write_crops(*dataset, transform, a.root, a.crops);
    return 0;
  }
  const i64 batches = dataset->size() / a.batch;
  Ring ring(*dataset, a);
  double first_batch = 0;
  double wall = 0;
  double cpu = 0;
  // Epochs run on without a border, as a loader's ring does; a warm-up comes first.
  for (i64 i = 0; i < batches * a.epochs; ++i) {
    const std::byte* images = ring.take(a.batch);
    if (i == 0) {
      first_batch = seconds_now() - begin;
      if (!a.save.empty()) {
        std::ofstream(a.save, std::ios::binary)
            .write(reinterpret_cast<const char*>(images),
                   std::streamsize(dataset->fields()[0].bytes() * std::min(a.saved, a.batch)));
      }
    }
    ring.release(a.batch);
    if (i + 1 == batches) {
      wall = seconds_now();
      cpu = cpu_seconds();
    }
  }
  wall = seconds_now() - wall;
  cpu = cpu_seconds() - cpu;
  const double images = double(batches * a.batch * (a.epochs - 1));
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"peer\": \"penstock_%s\", \"track\": \"%s\", \"workers\": %d, \"images\": %.0f, "
      "\"per_second\": %.1f, \"per_cpu_second\": %.1f, \"first_batch_s\": %.4f, \"rss_mb\": "
      "%.1f}\n",
      a.fast ? "fast" : "matched", a.f32 ? "f32" : "u8", a.workers, images, images / wall,
      images / cpu, first_batch, double(usage.ru_maxrss) / 1024);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "loader_peer: %s\n", error.what());
    return 1;
  }
}
