// Images per CPU-second of the image pipeline's stages on one thread.
//
//   image_decode FOLDER [COUNT]       (pictures, any depth; tools/make_images.py writes a set)
//
// A table, then one JSON line. CPU time repeats within a few per cent on a busy machine.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/image/index.h"
#include "data/image/reader.h"
#include "data/image/transform.h"
#include "framework/core/check.h"
#include "framework/core/machine.h"

namespace {

using namespace penstock;
using namespace penstock::data;
using namespace penstock::data::image;

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

struct Stage {
  const char* name;
  std::function<void(std::size_t)> run;
  double best = 0;  // images per CPU-second
};

int run(int argc, char** argv) {
  if (argc < 2) {
    throw ConfigError("image_decode FOLDER [COUNT]");
  }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[1])) {
    if (entry.is_regular_file() && has_picture_extension(entry.path().filename().string())) {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  paths.resize(std::min(paths.size(), argc > 2 ? std::stoul(argv[2]) : std::size_t{512}));
  if (paths.empty()) {
    throw DataError(format("{}: holds no pictures", argv[1]));
  }
  const auto reader = make_reader({});
  std::vector<FetchBuffer> files(paths.size());
  double bytes = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    reader->read(paths[i], 0, Reader::kToEnd, files[i]);
    bytes += double(files[i].size());
  }

  Decoder decoder;
  Pipeline pipeline;
  constexpr i64 kSize = 224;
  std::vector<std::byte> out(std::size_t(kSize * kSize * 3) * sizeof(float));
  const auto whole = [&](std::size_t i, bool fast) {
    const Header header = decoder.open(files[i], paths[i], {.fast = fast});
    decoder.decode({0, 0, header.width, header.height});
  };
  const TransformOptions matched{.size = kSize, .flip_horizontal = 0.5F};
  TransformOptions fast = matched;
  fast.quality = Quality::kFast;
  TransformOptions floats = matched;
  floats.normalise = true;
  const TransformOptions evaluation{
      .geometry = Geometry::kResizeCrop, .size = kSize, .shorter = 256};
  const auto key = [](std::size_t i) { return SampleKey{.index = i64(i), .epoch = 0, .seed = 1}; };
  const auto transformed = [&](std::size_t i, const TransformOptions& options) {
    pipeline.run(options, {}, key(i), files[i], paths[i], out.data());
  };
  Pipeline source;
  const Pixels first = source.decode({}, files[0], paths[0]);

  std::vector<Stage> stages = {
      {"header", [&](std::size_t i) { decoder.open(files[i], paths[i], {}); }},
      {"full decode", [&](std::size_t i) { whole(i, false); }},
      {"full decode, fast", [&](std::size_t i) { whole(i, true); }},
      {"region decode",
       [&](std::size_t i) {
         const Header header = decoder.open(files[i], paths[i], {});
         const Placement p = place(matched, key(i), header.width, header.height, paths[i]);
         decoder.decode({p.x.low, p.y.low, p.x.high - p.x.low, p.y.high - p.y.low});
       }},
      {"crop-resize alone",
       [&](std::size_t i) { pipeline.run(matched, key(i), first, paths[0], out.data()); }},
      {"random-resized-crop, matched", [&](std::size_t i) { transformed(i, matched); }},
      {"random-resized-crop, fast", [&](std::size_t i) { transformed(i, fast); }},
      {"random-resized-crop, f32", [&](std::size_t i) { transformed(i, floats); }},
      {"resize 256, centre crop", [&](std::size_t i) { transformed(i, evaluation); }},
      {"read + random-resized-crop",
       [&](std::size_t i) {
         reader->read(paths[i], 0, Reader::kToEnd, files[i]);
         transformed(i, matched);
       }},
  };
  constexpr int kRepeats = 3;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (Stage& stage : stages) {
      stage.run(0);
      const double begin = cpu_seconds();
      for (std::size_t i = 0; i < files.size(); ++i) {
        stage.run(i);
      }
      stage.best = std::max(stage.best, double(files.size()) / (cpu_seconds() - begin));
    }
  }
  std::printf("%zu pictures, %.1f kB on average, %s, %s\n", files.size(),
              bytes / double(files.size()) / 1e3, machine::cpu_name().c_str(),
              machine::name_of(machine::isa()));
  std::printf("%-32s %12s %10s\n", "stage", "img/CPU-s", "ms");
  std::string json;
  for (const Stage& stage : stages) {
    std::printf("%-32s %12.1f %10.4f\n", stage.name, stage.best, 1e3 / stage.best);
    json += format("{}\"{}\": {:.1f}", json.empty() ? "" : ", ", stage.name, stage.best);
  }
  std::printf("{\"benchmark\": \"image_decode\", \"pictures\": %zu, \"mean_kb\": %.1f, %s}\n",
              files.size(), bytes / double(files.size()) / 1e3, json.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "image_decode: %s\n", error.what());
    return 2;
  }
}
