#include "trainers/setup.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "data/formats.h"
#include "data/image/image_dataset.h"
#include "data/memory_set.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/kernels/blas.h"
#include "framework/kernels/choice.h"
#include "framework/kernels/library.h"
#include "framework/kernels/onednn.h"

namespace penstock::trainers {
namespace {

std::string origin(const io::Config& c, const char* key) { return io::origin_of(c, key); }

// The statistics that each public data set is usually normalised by.
struct Statistics {
  std::array<float, 4> mean, deviation;
};
Statistics usual_statistics(const std::string& name) {
  if (name == "fashion_mnist") {
    return {{0.2860F}, {0.3530F, 1, 1, 1}};
  }
  if (name == "mnist") {
    return {{0.1307F}, {0.3081F, 1, 1, 1}};
  }
  if (name == "cifar10") {
    return {{0.4914F, 0.4822F, 0.4465F, 0}, {0.2470F, 0.2435F, 0.2616F, 1}};
  }
  if (name == "cifar100") {
    return {{0.5071F, 0.4865F, 0.4409F, 0}, {0.2673F, 0.2564F, 0.2762F, 1}};
  }
  if (name.starts_with("image")) {
    return {{0.485F, 0.456F, 0.406F, 0}, {0.229F, 0.224F, 0.225F, 1}};
  }
  return {{0.5F, 0.5F, 0.5F, 0.5F}, {0.5F, 0.5F, 0.5F, 0.5F}};
}

std::string need_dir(const io::Config& c, const char* fallback = nullptr) {
  if (!c.data.dir.empty()) {
    return c.data.dir;
  }
  if (fallback != nullptr) {
    return fallback;
  }
  throw ConfigError(format("{}: data.dir is missing; {} needs the folder of its files", c.source,
                           c.data.name));
}

data::image::ImageDatasetOptions image_options(const io::Config& c, bool train) {
  using namespace data::image;
  ImageDatasetOptions o;
  TransformOptions& t = o.transform;
  t.size = c.data.image_size;
  t.channels = int(c.data.channels);
  t.shorter = i64(std::lround(double(c.data.image_size) * 256.0 / 224.0));
  t.quality = c.data.filter == "fast" ? Quality::kFast : Quality::kMatched;
  const bool augment = train && c.data.augment != "none";
  t.geometry = augment && c.data.random_crop ? Geometry::kRandomResizedCrop : Geometry::kResizeCrop;
  if (augment) {
    t.flip_horizontal = c.data.flip ? 0.5F : 0.0F;
    const auto strength = float(c.data.jitter);
    t.jitter = {strength, strength, strength, std::min(0.5F, strength / 4)};
    t.erase.probability = float(c.data.erasing);
  }
  o.cache.max_bytes = train ? c.data.cache_bytes : 0;
  return o;
}

struct Sets {
  std::shared_ptr<const data::Dataset> train, validation;
  std::vector<std::string> names;
  i64 classes = 0;
};

Sets open_sets(const io::Config& c) {
  const std::string& name = c.data.name;
  Sets s;
  if (name == "fashion_mnist" || name == "mnist") {
    const std::string dir =
        need_dir(c, name == "fashion_mnist" ? "/usr/share/datasets/fashion-mnist" : nullptr);
    s.train = data::open_mnist(dir, true);
    s.validation = data::open_mnist(dir, false);
    s.classes = 10;
    if (name == "fashion_mnist") {
      s.names = {"t-shirt", "trouser", "pullover", "dress", "coat",
                 "sandal",  "shirt",   "sneaker",  "bag",   "ankle boot"};
    }
  } else if (name == "cifar10" || name == "cifar100") {
    s.classes = name == "cifar10" ? 10 : 100;
    s.train = data::open_cifar(need_dir(c), true, int(s.classes));
    s.validation = data::open_cifar(need_dir(c), false, int(s.classes));
  } else if (name == "image_folder") {
    const auto folder = [&](const std::vector<std::string>& named, const char* usual) {
      return named.empty() ? need_dir(c) + usual : named.front();
    };
    const std::string train_folder = folder(c.data.train, "/train");
    auto train = data::image::open_image_folder(train_folder, {}, image_options(c, true));
    s.classes = train->classes();
    s.names = train->class_names();
    const std::string validation_folder = folder(c.data.validation, "/val");
    struct stat st {};
    if (!c.data.validation.empty() || stat(validation_folder.c_str(), &st) == 0) {
      auto validation = data::image::open_image_folder(validation_folder, {}, image_options(c, false));
      if (validation->class_names() != s.names) {
        throw DataError(format("data: {} and {} do not have the same classes ({} and {})", train_folder,
                               validation_folder, s.classes, validation->classes()));
      }
      s.validation = std::move(validation);
    }
    s.train = std::move(train);
  } else if (name == "image_shards") {
    if (c.data.train.empty()) {
      throw ConfigError(format("{}: data.train is missing; image_shards needs the tar files", c.source));
    }
    auto train = data::image::open_image_shards(c.data.train, {}, image_options(c, true));
    s.classes = train->classes();
    s.names = train->class_names();
    s.train = std::move(train);
    if (!c.data.validation.empty()) {
      s.validation = data::image::open_image_shards(c.data.validation, {}, image_options(c, false));
    }
  } else if (name == "text" || name == "tokens") {
    if (c.data.train.empty()) {
      throw ConfigError(format("{}: data.train is missing; {} needs the file", c.source, name));
    }
    const i64 vocabulary = c.model.vocabulary > 0 ? c.model.vocabulary : name == "text" ? 256 : 50257;
    const bool split = c.data.validation.empty();
    data::TokenOptions train{.sequence = c.data.sequence,
                             .vocabulary = vocabulary,
                             .end = split ? 1 - c.data.validation_share : 1};
    data::TokenOptions rest = train;
    rest.begin = split ? train.end : 0;
    rest.end = 1;
    const auto open = [&](const std::vector<std::string>& files, const data::TokenOptions& o) {
      return name == "text" ? data::open_text(files.front(), o) : data::open_tokens(files, o);
    };
    s.train = open(c.data.train, train);
    if (!split || c.data.validation_share > 0) {
      s.validation = open(split ? c.data.train : c.data.validation, rest);
    }
    s.classes = vocabulary;
  } else {
    const i64 side = c.data.image_size;
    data::SyntheticOptions o{.size = c.data.samples > 0 ? c.data.samples : 10'000,
                             .seed = std::uint64_t(c.run.seed),
                             .classes = c.data.classes,
                             .cpu_seconds = c.data.cost,
                             .wait_seconds = c.data.blocking,
                             .jitter = c.data.cost_jitter};
    if (name == "synthetic_tokens") {
      o.shape = {c.data.sequence};
      o.classes = c.model.vocabulary > 0 ? c.model.vocabulary : 256;
      s.train = data::synthetic_tokens(o);
      o.seed += 1000;
      o.size = c.data.validation_samples > 0 ? c.data.validation_samples : 1000;
      s.validation = data::synthetic_tokens(o);
    } else {
      o.shape = name == "synthetic_images" ? Shape{side, side, c.data.channels}
                                           : Shape{side, side, side, c.data.channels};
      s.train = data::synthetic_images(o);
      o.seed += 1000;
      o.size = c.data.validation_samples > 0 ? c.data.validation_samples : 1000;
      o.cpu_seconds = o.wait_seconds = 0;
      s.validation = data::synthetic_images(o);
    }
    s.classes = o.classes;
  }
  return s;
}

}  // namespace

measure::Precision precision_of(const std::string& name) {
  return name == "tf32"   ? measure::Precision::kTf32
         : name == "fp16" ? measure::Precision::kF16
         : name == "bf16" ? measure::Precision::kBf16
                          : measure::Precision::kF32;
}

Device device_of(const io::Config& c) {
  if (c.train.device == "cuda") {
    cuda::require();
    return kCuda;
  }
  if (c.train.device == "auto" && cuda::available()) {
    return kCuda;
  }
  return kCpu;
}

Setup make_setup(const io::Config& config) {
  Setup s;
  s.config = config;
  const io::Config& c = s.config;
  s.device = device_of(c);
  s.precision = precision_of(c.train.precision);
  s.compute = s.precision == measure::Precision::kF16    ? DType::f16
              : s.precision == measure::Precision::kBf16 ? DType::bf16
                                                         : DType::f32;
  s.threads = c.train.threads ? int(*c.train.threads) : machine::cores();
  if (s.device.is_cpu()) {
    if (s.compute == DType::f16) {
      throw ConfigError(format("{}: train.precision: fp16 needs a GPU; on this CPU fp32{} are available",
                               origin(c, "train.precision"),
                               kernels::cpu_bf16_usable() ? " and bf16" : ""));
    }
    if (s.compute == DType::bf16 && !kernels::cpu_bf16_usable()) {
      throw ConfigError(format("{}: train.precision: this CPU has no bf16 arithmetic that oneDNN uses, and "
                               "emulating it is slower than fp32; use fp32",
                               origin(c, "train.precision")));
    }
    if (s.precision == measure::Precision::kTf32) {
      log::info("train.precision: tf32 is a GPU's; on the CPU it is fp32");
      s.precision = measure::Precision::kF32;
    }
  }
  Sets sets = open_sets(c);
  s.train = sets.train;
  s.validation = sets.validation;
  s.class_names = sets.names;
  const bool tokens = s.train->fields()[0].name == "input";
  if (c.model.name == "bert") {
    if (!tokens) {
      throw ConfigError(format("{}: model.name: bert takes token sequences; data.name: {} gives {}",
                               origin(c, "model.name"), c.data.name, s.train->fields()[0].shape));
    }
    const data::Masking masking{.probability = c.data.mask_probability,
                                .mask_token = c.data.mask_token,
                                .vocabulary = sets.classes};
    s.train = data::masked(s.train, masking);
    if (s.validation) {
      s.validation = data::masked(s.validation, masking);
    }
  }
  if (c.data.samples > 0 && c.data.samples < s.train->size()) {
    s.train = data::part_of(s.train, 0, c.data.samples);
  }
  if (s.validation && c.data.validation_samples > 0 && c.data.validation_samples < s.validation->size()) {
    s.validation = data::part_of(s.validation, 0, c.data.validation_samples);
  }
  if (c.data.augment == "worker" && !c.data.name.starts_with("image") &&
      (c.data.crop_pad > 0 || c.data.flip)) {
    s.train = data::augmented(s.train, {.pad = c.data.crop_pad, .flip = c.data.flip});
  }

  models::ModelOptions& m = s.model;
  m.name = c.model.name;
  m.input = s.train->fields()[0].shape;
  m.classes = c.model.classes > 0 ? c.model.classes : sets.classes;
  if (!tokens && m.classes < sets.classes) {
    throw ConfigError(format("{}: model.classes: {}; the data set has {}", origin(c, "model.classes"),
                             m.classes, sets.classes));
  }
  m.hidden = c.model.hidden;
  m.layers = c.model.layers;
  m.heads = c.model.heads;
  m.width = c.model.width;
  m.vocabulary = tokens ? sets.classes : 256;
  m.context = c.model.context;
  m.patch = c.model.patch;
  m.dropout = c.model.dropout;
  m.stem = c.model.stem;
  m.recompute_blocks = c.model.recompute == "blocks";
  m.label_smoothing = float(c.train.label_smoothing);
  const Statistics usual = usual_statistics(c.data.name);
  m.mean = usual.mean;
  m.deviation = usual.deviation;
  for (std::size_t i = 0; i < c.data.mean.size(); ++i) {
    m.mean[i] = float(c.data.mean[i]);
    m.deviation[i] = float(c.data.deviation[i]);
  }
  const auto model = models::build_model(m);
  s.targets_per_sample = c.model.name == "bert" ? 0 : model->targets_per_sample();
  s.batch_norm = model->uses_batch_norm();
  s.classifies = !tokens;

  optim::OptimizerOptions& o = s.optimizer;
  o.kind = c.optimizer.name == "adam"    ? optim::Kind::kAdam
           : c.optimizer.name == "adamw" ? optim::Kind::kAdamW
                                         : optim::Kind::kSgd;
  o.nesterov = c.optimizer.nesterov;
  o.weight_decay = float(c.optimizer.weight_decay);
  o.epsilon = float(c.optimizer.epsilon);
  o.clip_norm = float(c.optimizer.clip_norm);
  o.scale_loss = s.compute == DType::f16;
  return s;
}

void apply_process_settings(const Setup& s) {
  parallel::set_threads(s.threads);
  kernels::set_tf32(s.precision == measure::Precision::kTf32);
  kernels::set_deterministic(s.config.train.deterministic);
  kernels::set_workspace_limit(s.config.memory.workspace_limit);
  if (s.device.is_cuda()) {
    // Choices of one kind of run are of no use to another: each has its file.
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const std::string folder = cache != nullptr && *cache != 0 ? std::string(cache) + "/penstock"
                               : home != nullptr ? std::string(home) + "/.cache/penstock"
                                                 : std::string();
    std::error_code error;
    if (!folder.empty() && (std::filesystem::create_directories(folder, error) || !error)) {
      std::string name = format("{} {} {} {}", cuda::info().name, kernels::cuda_library_versions(),
                                s.config.train.deterministic ? "deterministic" : "timed",
                                s.config.memory.workspace_limit >> 20);
      for (char& c : name) {
        c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
      }
      kernels::use_choice_file(folder + "/choices-" + name + ".txt");
    }
  }
}

StepOptions step_options(const Setup& s, Device device, i64 largest) {
  const auto fields = s.train->fields();
  return {.device = device,
          .compute = s.compute,
          .tf32 = s.precision == measure::Precision::kTf32,
          .seed = std::uint64_t(s.config.run.seed),
          .optimizer = s.optimizer,
          .fields = {fields.begin(), fields.end()},
          .largest = largest,
          .capture = s.config.train.capture != "off"};
}

i64 total_samples(const Setup& s) { return s.train->size() * s.config.train.epochs; }

i64 samples_of(const io::Period& p, const Setup& s, i64 step_samples) {
  using Unit = io::Period::Unit;
  switch (p.unit) {
    case Unit::kSteps: return i64(p.count * double(step_samples));
    case Unit::kEpochs: return i64(p.count * double(s.train->size()));
    case Unit::kSamples: return i64(p.count);
    case Unit::kShare: return i64(p.count * double(total_samples(s)));
    default: return -1;
  }
}

optim::Schedule schedule_of(const Setup& s, i64 step_samples) {
  const io::Config& c = s.config;
  optim::Schedule schedule;
  const std::string& name = c.schedule.name;
  schedule.kind = name == "constant" ? optim::Schedule::Kind::kConstant
                  : name == "linear" ? optim::Schedule::Kind::kLinear
                  : name == "step"   ? optim::Schedule::Kind::kStep
                  : name == "wsd"    ? optim::Schedule::Kind::kWsd
                                     : optim::Schedule::Kind::kCosine;
  schedule.base = c.optimizer.learning_rate;
  schedule.final = c.schedule.final;
  schedule.total = total_samples(s);
  if (c.train.max_steps > 0) {
    schedule.total = std::min(schedule.total, c.train.max_steps * step_samples);
  }
  schedule.warmup = std::clamp<i64>(samples_of(c.schedule.warmup, s, step_samples), 0, schedule.total);
  schedule.decay = std::clamp<i64>(samples_of(c.schedule.decay, s, step_samples), 0, schedule.total);
  schedule.factor = c.schedule.factor;
  for (const double m : c.schedule.milestones) {
    schedule.milestones.push_back(i64(m * double(schedule.total)));
  }
  return schedule;
}

data::LoaderOptions loader_options(const Setup& s) {
  const io::Config& c = s.config;
  const int cores = machine::cores();
  data::LoaderOptions o;
  o.sampler.seed = std::uint64_t(c.run.seed);
  o.sampler.shuffle = c.data.shuffle;
  o.batch = c.train.batch;
  // Auto begins small: the tuner adds what the run needs.
  o.workers = c.loader.workers ? int(*c.loader.workers) : (s.device.is_cpu() ? 1 : std::min(4, cores));
  o.depth = c.loader.depth ? int(*c.loader.depth) : 2;
  o.io_concurrency = c.loader.io_concurrency ? int(*c.loader.io_concurrency) : std::max(4, o.workers);
  o.max_workers = std::max(o.workers, std::max(4 * cores, 16));
  o.max_bytes = c.loader.max_bytes;
  o.pinned = s.device.is_cuda();
  o.bad = {.replace = c.data.on_error == "replace",
           .max_count = c.data.max_bad,
           .max_rate = c.data.max_bad_rate};
  o.read_limit = c.loader.read_limit;
  return o;
}

}  // namespace penstock::trainers
