#include "framework/io/schema.h"

#include <algorithm>

#include "framework/io/files.h"
#include "framework/io/schema_values.h"

namespace penstock::io::schema {
namespace {

const std::string& only(const Value& v, const std::string& expected) {
  if (v.list) {
    throw ConfigError(format("expected {}, found a list", expected));
  }
  return v.items.front();
}

const std::string& unquoted(const Value& v, const std::string& expected) {
  const std::string& text = only(v, expected);
  if (v.quoted) {
    throw ConfigError(format("expected {}, found text in quotes; leave the quotes out", expected));
  }
  return text;
}

// A path with a zero byte inside would name another file than it shows.
const std::string& without_zero(const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    throw ConfigError("expected text, found a zero character inside");
  }
  return text;
}

// Other spellings of values: PyTorch's of precisions, YAML's of switches.
constexpr std::pair<const char*, const char*> kSpellings[] = {
    {"f32", "fp32"},  {"float32", "fp32"},  {"f16", "fp16"}, {"float16", "fp16"},
    {"half", "fp16"}, {"bfloat16", "bf16"}, {"true", "on"},  {"false", "off"}};

// One builder per type. `at` maps a Config to the member.
template <class At>
Key integer(const char* path, At at, const char* fallback, Range range, Resume resume,
            const char* help) {
  return {.path = path,
          .type = range_text("integer", range),
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .set = [at, range](
                     Config& c,
                     const Value& v) { at(c) = parse_integer(unquoted(v, "an integer"), range); },
          .text = [at](const Config& c) { return std::to_string(at(const_cast<Config&>(c))); }};
}

template <class At>
Key number(const char* path, At at, const char* fallback, Range range, Resume resume,
           const char* help) {
  return {
      .path = path,
      .type = range_text("number", range),
      .fallback = fallback,
      .resume = resume,
      .help = help,
      .set = [at, range](Config& c,
                         const Value& v) { at(c) = parse_number(unquoted(v, "a number"), range); },
      .text = [at](const Config& c) { return number_text(at(const_cast<Config&>(c))); }};
}

template <class At>
Key boolean(const char* path, At at, const char* fallback, Resume resume, const char* help) {
  return {
      .path = path,
      .type = "true or false",
      .fallback = fallback,
      .resume = resume,
      .help = help,
      .choices = {"true", "false"},
      .set = [at](Config& c, const Value& v) { at(c) = parse_bool(unquoted(v, "true or false")); },
      .text =
          [at](const Config& c) {
            return std::string(at(const_cast<Config&>(c)) ? "true" : "false");
          }};
}

template <class At>
Key text(const char* path, At at, const char* fallback, Resume resume, const char* help) {
  return {.path = path,
          .type = "text",
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .set = [at](Config& c, const Value& v) { at(c) = without_zero(only(v, "text")); },
          .text =
              [at](const Config& c) {
                const std::string& t = at(const_cast<Config&>(c));
                return t.empty() ? std::string() : scalar_text(t);
              }};
}

template <class At>
Key choice(const char* path, At at, const char* fallback, std::vector<std::string> choices,
           Resume resume, const char* help) {
  std::string type;
  for (const std::string& c : choices) {
    type += (type.empty() ? "one of " : ", ") + c;
  }
  Key key{.path = path,
          .type = type,
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .choices = choices,
          .text = [at](const Config& c) { return scalar_text(at(const_cast<Config&>(c))); }};
  key.set = [at, choices, type](Config& c, const Value& v) {
    const std::string& word = only(v, type);
    std::string known = word;
    for (const auto& [from, to] : kSpellings) {
      if (word == from && std::find(choices.begin(), choices.end(), to) != choices.end()) {
        known = to;
      }
    }
    if (std::find(choices.begin(), choices.end(), known) == choices.end()) {
      const std::string near = nearest_word(word, choices);
      throw ConfigError(format("expected {}, found {}{}", type, in_quotes(word),
                               near.empty() ? "" : format("; nearest: {}", near)));
    }
    at(c) = known;
  };
  return key;
}

template <class At>
Key bytes(const char* path, At at, const char* fallback, Resume resume, const char* help) {
  return {.path = path,
          .type = "bytes",
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .set = [at](Config& c, const Value& v) { at(c) = parse_bytes(only(v, "bytes")); },
          .text = [at](const Config& c) { return std::to_string(at(const_cast<Config&>(c))); }};
}

template <class At>
Key seconds(const char* path, At at, const char* fallback, Resume resume, const char* help) {
  return {.path = path,
          .type = "time",
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .set = [at](Config& c, const Value& v) { at(c) = parse_seconds(only(v, "a time")); },
          .text = [at](const Config& c) { return number_text(at(const_cast<Config&>(c))) + " s"; }};
}

template <class At>
Key period(const char* path, At at, const char* fallback, Units units, Resume resume,
           const char* help) {
  return {.path = path,
          .type = units_text(units),
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .set = [at, units](
                     Config& c,
                     const Value& v) { at(c) = parse_period(only(v, units_text(units)), units); },
          .text = [at](const Config& c) { return to_string(at(const_cast<Config&>(c))); }};
}

template <class At>
Key auto_integer(const char* path, At at, const char* fallback, Range range, Resume resume,
                 const char* help) {
  return {.path = path,
          .type = "auto or " + range_text("integer", range),
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .choices = {"auto"},
          .set =
              [at, range](Config& c, const Value& v) {
                const std::string& t = unquoted(v, "auto or an integer");
                at(c) = t == "auto" ? std::nullopt : AutoInt(parse_integer(t, range));
              },
          .text =
              [at](const Config& c) {
                const AutoInt& v = at(const_cast<Config&>(c));
                return v ? std::to_string(*v) : std::string("auto");
              }};
}

// A list may be written as its only item.
template <class At, class Parse>
Key list(const char* path, At at, const char* fallback, const char* type, Parse parse,
         Resume resume, const char* help) {
  return {.path = path,
          .type = type,
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .set =
              [at, type, parse](Config& c, const Value& v) {
                if (v.quoted) {
                  throw ConfigError(
                      format("expected a {}, found text in quotes; leave the quotes out", type));
                }
                std::decay_t<decltype(at(c))> all;
                for (const std::string& t : v.items) {
                  all.push_back(parse(t));
                }
                at(c) = all;
              },
          .text =
              [at](const Config& c) {
                std::string all;
                for (const auto n : at(const_cast<Config&>(c))) {
                  all += (all.empty() ? "" : ", ") + number_text(double(n));
                }
                return "[" + all + "]";
              }};
}

template <class At>
Key numbers(const char* path, At at, const char* fallback, Range range, Resume resume,
            const char* help) {
  return list(
      path, at, fallback, "list of numbers",
      [range](const std::string& t) { return parse_number(t, range); }, resume, help);
}

template <class At>
Key integers(const char* path, At at, const char* fallback, Range range, Resume resume,
             const char* help) {
  return list(
      path, at, fallback, "list of integers",
      [range](const std::string& t) { return parse_integer(t, range); }, resume, help);
}

template <class At>
Key texts(const char* path, At at, const char* fallback, Resume resume, const char* help) {
  return {.path = path,
          .type = "text or list of texts",
          .fallback = fallback,
          .resume = resume,
          .help = help,
          .set =
              [at](Config& c, const Value& v) {
                std::for_each(v.items.begin(), v.items.end(), without_zero);
                at(c) = v.items;
              },
          .text =
              [at](const Config& c) {
                std::string all;
                for (const std::string& t : at(const_cast<Config&>(c))) {
                  all += (all.empty() ? "" : ", ") + scalar_text(t);
                }
                return "[" + all + "]";
              }};
}

#define AT(member)          \
  [](Config & c) -> auto& { \
    return c.member;        \
  }

std::vector<Key> build() {
  using enum Resume;
  // Caps far above what anyone trains: products of such numbers stay in 64 bits.
  const Range count{0, 1e12};    // samples, steps
  const Range size{1, 1 << 20};  // of a layer, a batch, a sequence
  const Range size_or_0{0, 1 << 20};
  const Range tokens{0, 1 << 24};  // vocabularies and classes
  const Range share{0, 1};
  std::vector<Key> t;
  const auto add = [&](Key key) { t.push_back(std::move(key)); };

  add(text("run.name", AT(run.name), "", kFree, "Name of the run; default: the file's name."));
  add(integer("run.seed", AT(run.seed), "1", {0, 9e15}, kFrozen,
              "Seed of initial weights, order, augmentation and dropout."));
  add(text("run.out", AT(run.out), "", kFree, "Folder of the run; default: runs/NAME-N."));

  Key name = choice("model.name", AT(model.name), "",
                    {"mlp", "cnn", "resnet18", "resnet34", "resnet50", "resnet101", "gpt", "bert",
                     "vit", "conv3d"},
                    kFrozen, "Which model.");
  name.required = true;
  add(name);
  add(integer("model.classes", AT(model.classes), "0", tokens, kFrozen,
              "Classes; 0: what the data set has."));
  add(integers("model.hidden", AT(model.hidden), "[512, 512]", size, kFrozen, "mlp: widths."));
  add(integer("model.layers", AT(model.layers), "6", {1, 4096}, kFrozen,
              "gpt, bert, vit: blocks."));
  add(integer("model.heads", AT(model.heads), "6", {1, 4096}, kFrozen,
              "gpt, bert, vit: attention heads."));
  add(integer("model.width", AT(model.width), "384", size, kFrozen, "gpt, bert, vit: width."));
  add(integer("model.vocabulary", AT(model.vocabulary), "0", tokens, kFrozen,
              "gpt, bert: tokens; 0: 256 for text, 50257 for token shards."));
  add(integer("model.context", AT(model.context), "0", size_or_0, kFrozen,
              "gpt, bert: longest sequence; 0: data.sequence."));
  add(integer("model.patch", AT(model.patch), "4", {1, 1024}, kFrozen,
              "vit: patch side in pixels."));
  add(number("model.dropout", AT(model.dropout), "0", {0, 0.99}, kFrozen,
             "Probability of a zero."));
  add(number("model.attention_dropout", AT(model.attention_dropout), "0", {0, 1}, kFrozen,
             "Not available: attention runs fused; anything but 0 is an error."));
  add(choice("model.stem", AT(model.stem), "auto", {"auto", "cifar", "imagenet"}, kFrozen,
             "resnet: the first layers; auto decides by image size."));
  add(choice(
      "model.recompute", AT(model.recompute), "none", {"none", "blocks"}, kFree,
      "gpt, bert, vit: blocks saves memory by running each block again in the backward pass."));
  add(text("model.weights", AT(model.weights), "", kFrozen, "Safetensors file to start from."));

  Key data =
      choice("data.name", AT(data.name), "",
             {"fashion_mnist", "mnist", "cifar10", "cifar100", "image_folder", "image_shards",
              "text", "tokens", "synthetic_images", "synthetic_tokens", "synthetic_volumes"},
             kFrozen, "Which data set.");
  data.required = true;
  add(data);
  add(text("data.dir", AT(data.dir), "", kFree,
           "Folder of the files; fashion_mnist: default /usr/share/datasets/fashion-mnist."));
  add(texts("data.train", AT(data.train), "[]", kFree,
            "Training files or folders; image_folder: default DIR/train."));
  add(texts("data.validation", AT(data.validation), "[]", kFree,
            "Validation files or folders; image_folder: default DIR/val."));
  add(number("data.validation_share", AT(data.validation_share), "0.1", {0, 0.9}, kFrozen,
             "text, tokens: the part at the end that is kept for validation when there is no file "
             "for it."));
  add(integer("data.image_size", AT(data.image_size), "224", {1, 16384}, kFrozen,
              "image_folder, image_shards, synthetic_images: side in pixels."));
  add(integer("data.channels", AT(data.channels), "3", {1, 4}, kFrozen,
              "Channels of images that are made."));
  add(integer("data.samples", AT(data.samples), "0", count, kFrozen,
              "Use only the first so many; synthetic: how many there are (0: 10000)."));
  add(integer("data.validation_samples", AT(data.validation_samples), "0", count, kFree,
              "Validate on the first so many; 0: all (synthetic: 1000)."));
  add(integer("data.classes", AT(data.classes), "10", {1, 1 << 24}, kFrozen,
              "synthetic: classes."));
  add(integer("data.sequence", AT(data.sequence), "256", size, kFrozen, "Tokens of a sample."));
  add(boolean("data.shuffle", AT(data.shuffle), "true", kFrozen, "A new order every epoch."));
  add(choice("data.augment", AT(data.augment), "worker", {"worker", "none"}, kFrozen,
             "Where samples are augmented; none switches crop, flip and the rest off."));
  add(integer("data.crop_pad", AT(data.crop_pad), "0", {0, 64}, kFrozen,
              "Pad by so many pixels and crop back at a random place."));
  add(boolean("data.flip", AT(data.flip), "false", kFrozen, "Mirror images half of the time."));
  add(boolean("data.random_crop", AT(data.random_crop), "true", kFrozen,
              "image_folder, image_shards: random resized crop (else centre crop) in training."));
  add(number("data.jitter", AT(data.jitter), "0", share, kFrozen, "Strength of colour jitter."));
  add(number("data.erasing", AT(data.erasing), "0", share, kFrozen,
             "Probability of random erasing."));
  add(numbers("data.mean", AT(data.mean), "[]", {-1e3, 1e3}, kFrozen,
              "Per channel, pixels scaled to [0, 1]; default: the data set's own."));
  add(numbers("data.deviation", AT(data.deviation), "[]", {0, 1e3, true}, kFrozen,
              "Per channel, above 0."));
  add(choice("data.transfer", AT(data.transfer), "uint8", {"uint8"}, kFree,
             "How images go to the device; they are normalised there."));
  add(choice("data.filter", AT(data.filter), "matched", {"matched", "fast"}, kFrozen,
             "Resampling: matched (antialiased as PIL does it) or fast."));
  add(bytes("data.cache_bytes", AT(data.cache_bytes), "0", kFree,
            "Memory for decoded images; 0: none."));
  add(seconds("data.cost", AT(data.cost), "0 s", kFree, "synthetic: CPU time of a sample."));
  add(seconds("data.blocking", AT(data.blocking), "0 s", kFree,
              "synthetic: time a sample blocks."));
  add(number("data.cost_jitter", AT(data.cost_jitter), "0", share, kFree,
             "synthetic: costs vary by this share."));
  add(choice("data.on_error", AT(data.on_error), "stop", {"stop", "replace"}, kFrozen,
             "A sample that cannot be read ends the run, or is replaced by the next one."));
  add(integer("data.max_bad", AT(data.max_bad), "100", count, kFree, "Replaced samples allowed."));
  add(number("data.max_bad_rate", AT(data.max_bad_rate), "0.01", share, kFree,
             "Share of replaced samples allowed, once 1000 were delivered."));
  add(number("data.mask_probability", AT(data.mask_probability), "0.15", share, kFrozen,
             "bert: tokens that are masked."));
  add(integer("data.mask_token", AT(data.mask_token), "0", tokens, kFrozen,
              "bert: the token that masks."));

  add(auto_integer("loader.workers", AT(loader.workers), "auto", {0, 1024}, kFree,
                   "Loading threads; 0 loads in the training thread; auto is tuned."));
  add(auto_integer("loader.depth", AT(loader.depth), "auto", {1, 1024}, kFree,
                   "Batches loaded ahead; auto is tuned."));
  add(auto_integer("loader.io_concurrency", AT(loader.io_concurrency), "auto", {1, 1024}, kFree,
                   "Reads in flight, where samples are files; auto is tuned."));
  add(bytes("loader.max_bytes", AT(loader.max_bytes), "512 MiB", kFree,
            "Memory of the sample ring."));
  add(seconds("loader.read_limit", AT(loader.read_limit), "120 s", kFree,
              "A read that takes longer ends the run, naming the file."));

  add(integer("train.batch", AT(train.batch), "64", size, kFree,
              "Samples of one optimizer step's micro-batch."));
  add(integer("train.accumulate", AT(train.accumulate), "1", {1, 65536}, kFree,
              "Micro-batches per optimizer step."));
  add(choice("train.precision", AT(train.precision), "fp32", {"fp32", "tf32", "fp16", "bf16"},
             kFrozen, "Arithmetic of matrix products and activations."));
  add(integer("train.epochs", AT(train.epochs), "10", {1, 1e6}, kExtendable,
              "Passes over the data."));
  add(integer("train.max_steps", AT(train.max_steps), "0", count, kFree,
              "Stop after so many optimizer steps, where schedules end too; 0: no limit."));
  add(seconds("train.max_time", AT(train.max_time), "0 s", kFree,
              "Stop, with a checkpoint, after so long; 0: no limit."));
  add(choice("train.capture", AT(train.capture), "auto", {"auto", "on", "off"}, kFree,
             "CUDA: replay captured steps."));
  add(boolean("train.deterministic", AT(train.deterministic), "false", kFrozen,
              "Only deterministic algorithms, untimed: the same bits every time."));
  add(number("train.target", AT(train.target), "0", {}, kFree,
             "Stop when the validation metric reaches it (accuracy, else loss); 0: no target."));
  add(choice("train.on_nan", AT(train.on_nan), "skip", {"skip", "stop"}, kFree,
             "A step with a gradient that is not finite is skipped, or ends the run."));
  add(integer("train.max_bad_steps", AT(train.max_bad_steps), "20", {1, 1e6}, kFree,
              "Skipped steps in a row that end the run as diverged."));
  add(choice("train.device", AT(train.device), "auto", {"auto", "cpu", "cuda"}, kFree,
             "Where to train."));
  add(auto_integer("train.threads", AT(train.threads), "auto", {1, 1024}, kFree,
                   "Compute threads of the CPU; auto: the cores granted."));
  add(number("train.label_smoothing", AT(train.label_smoothing), "0", {0, 0.9}, kFrozen,
             "Share of the target that is spread over all classes."));

  add(choice("optimizer.name", AT(optimizer.name), "sgd", {"sgd", "adam", "adamw"}, kFrozen,
             "Which optimizer."));
  add(number("optimizer.learning_rate", AT(optimizer.learning_rate), "0.1", {0, 1e6, true}, kFree,
             "Of the schedule's top, at the configured batch."));
  add(number("optimizer.momentum", AT(optimizer.momentum), "0.9", {0, 0.9999}, kFree, "sgd."));
  add(boolean("optimizer.nesterov", AT(optimizer.nesterov), "false", kFrozen, "sgd."));
  add(numbers("optimizer.betas", AT(optimizer.betas), "[0.9, 0.999]", {}, kFree, "adam, adamw."));
  add(number("optimizer.epsilon", AT(optimizer.epsilon), "1e-8", {0, 1, true}, kFrozen,
             "adam, adamw."));
  add(number("optimizer.weight_decay", AT(optimizer.weight_decay), "0", {0, 1e6}, kFrozen,
             "Of matrices; vectors (biases, norms) are left alone."));
  add(number("optimizer.clip_norm", AT(optimizer.clip_norm), "0", {0, 1e30}, kFrozen,
             "Gradients are scaled down to this norm; 0: never."));

  add(choice("schedule.name", AT(schedule.name), "cosine",
             {"constant", "cosine", "linear", "step", "wsd"}, kFrozen,
             "The learning rate over the run; counts samples."));
  add(period("schedule.warmup", AT(schedule.warmup), "never", Units::kRun, kFrozen,
             "Linear rise at the start."));
  add(period("schedule.decay", AT(schedule.decay), "20 %", Units::kRun, kFrozen,
             "wsd: the fall at the end."));
  add(number("schedule.final", AT(schedule.final), "0", {0, 1e6}, kFrozen,
             "cosine, linear, wsd: learning rate at the end."));
  add(number("schedule.factor", AT(schedule.factor), "0.1", share, kFrozen,
             "step: of each milestone."));
  add(numbers("schedule.milestones", AT(schedule.milestones), "[0.5, 0.75]", {0, 1}, kFrozen,
              "step: shares of the run."));

  add(choice(
      "auto_batch.policy", AT(auto_batch.policy), "off", {"off", "throughput", "hold"}, kFree,
      "Find the batch: throughput takes the knee and scales the learning rate; hold keeps the "
      "configured batch in micro-batches of the knee. --auto-batch sets it."));
  add(integer("auto_batch.max", AT(auto_batch.max), "0", size_or_0, kFree,
              "Largest batch; 0: no limit."));
  Key scale{.path = "auto_batch.max_scale",
            .type = "number or none",
            .fallback = "16",
            .resume = kFree,
            .help = "throughput: largest multiple of train.batch.",
            .choices = {"none"},
            .set =
                [](Config& c, const Value& v) {
                  const std::string& word = only(v, "a number or none");
                  c.auto_batch.max_scale =
                      word == "none" ? std::nullopt : std::optional(parse_number(word, {1}));
                },
            .text =
                [](const Config& c) {
                  return c.auto_batch.max_scale ? number_text(*c.auto_batch.max_scale) : "none";
                }};
  add(scale);
  add(number("auto_batch.knee", AT(auto_batch.knee), "0.95", {0.5, 1}, kFree,
             "Share of the best throughput that the smallest batch must reach."));
  add(number("auto_batch.budget_share", AT(auto_batch.budget_share), "0.05", {0, 1, true}, kFree,
             "Share of the run's predicted time that the probe may take."));
  add(seconds("auto_batch.budget_seconds", AT(auto_batch.budget_seconds), "0 s", kFree,
              "Longest probe; 0: 30 s on a GPU, 60 s on a CPU."));
  add(boolean("auto_batch.online", AT(auto_batch.online), "true", kFree,
              "Keep tuning workers, depth and batch during the run."));

  add(period("evaluation.every", AT(evaluation.every), "1 epochs", Units::kRunOrAuto, kFree,
             "Validation."));
  add(integer("evaluation.batch", AT(evaluation.batch), "0", size_or_0, kFree,
              "0: the training batch."));
  add(integer("evaluation.samples", AT(evaluation.samples), "0", count, kFree,
              "At most so many; 0: all."));

  add(period("checkpoint.every", AT(checkpoint.every), "auto", Units::kAny, kFree,
             "auto: as often as checkpoint.budget allows, at least every 10 minutes, and at every "
             "epoch."));
  add(integer("checkpoint.keep_last", AT(checkpoint.keep_last), "2", {0, 1e6}, kFree,
              "Newest ones that are kept; 0: all."));
  add(integer("checkpoint.keep_best", AT(checkpoint.keep_best), "1", {0, 1e6}, kFree,
              "Best ones that are kept."));
  add(number("checkpoint.budget", AT(checkpoint.budget), "0.03", {0, 1, true}, kFree,
             "Share of wall time that saving may cost."));
  add(integer("storage.patience", AT(storage.patience), "3", {0, 1e6}, kFree,
              "Failed saves in a row that are only warned about."));
  add(choice("storage.on_full", AT(storage.on_full), "pause", {"pause", "stop"}, kFree,
             "What then: wait for space, or end with exit code 6."));

  add(period("log.interval", AT(log.interval), "auto", Units::kInterval, kFree,
             "Between lines of metrics.jsonl, e.g. 50 steps or 2 s; auto: max(0.5 s, 30 steps), "
             "cut at 4 s."));
  add(choice("log.level", AT(log.level), "info", {"debug", "info", "warning", "error"}, kFree,
             "On stderr."));
  add(boolean("log.tensorboard", AT(log.tensorboard), "true", kFree,
              "Write TensorBoard event files."));
  add(integer("log.trace_steps", AT(log.trace_steps), "0", {0, 10000}, kFree,
              "Steps in trace.json; 0: none."));
  add(bytes("memory.limit", AT(memory.limit), "0", kFree,
            "Memory that may be used; 0: what is free."));
  add(bytes("memory.workspace_limit", AT(memory.workspace_limit), "256 MiB", kFree,
            "Scratch that one library call may take."));
  return t;
}

#undef AT

}  // namespace

const std::vector<Key>& table() {
  static const std::vector<Key> keys = build();
  return keys;
}

const std::vector<std::pair<std::string, std::string>>& aliases() {
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"loader.num_workers", "loader.workers"},
      {"loader.prefetch", "loader.depth"},
      {"train.batch_size", "train.batch"},
      {"optimizer.lr", "optimizer.learning_rate"},
      {"data.random_resized_crop", "data.random_crop"}};
  return all;
}

const Key* find(const std::string& path) {
  const std::string* name = &path;
  for (const auto& [from, to] : aliases()) {
    if (from == path) {
      name = &to;
    }
  }
  for (const Key& k : table()) {
    if (k.path == *name) {
      return &k;
    }
  }
  return nullptr;
}

}  // namespace penstock::io::schema
