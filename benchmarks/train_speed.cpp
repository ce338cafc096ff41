// Speed of the full training step of one model at one batch, on samples that stay on the device:
// samples/s, share of the matrix units' measured ceiling, planned and measured memory.
// train_speed --model resnet18 --batch 128 --precision bf16 [--device cpu|cuda] [--threads N] [--seconds S]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "framework/core/log.h"
#include "framework/io/json.h"
#include "framework/measure/clock.h"
#include "trainers/device.h"
#include "trainers/plan.h"

namespace {

using namespace penstock;

// A configuration with synthetic data of the workload's real shapes.
std::string workload(const std::string& name) {
  const auto images = [](int side, int channels, int classes) {
    return "data:\n  name: synthetic_images\n  image_size: " + std::to_string(side) +
           "\n  channels: " + std::to_string(channels) + "\n  classes: " + std::to_string(classes) + "\n";
  };
  const auto tokens = [](int length) {
    return "data:\n  name: synthetic_tokens\n  sequence: " + std::to_string(length) + "\n";
  };
  const std::map<std::string, std::string> all = {
      {"mlp", "model:\n  name: mlp\n  hidden: [512, 512]\n" + images(28, 1, 10)},
      {"cnn", "model:\n  name: cnn\n" + images(28, 1, 10)},
      {"resnet18", "model:\n  name: resnet18\n" + images(32, 3, 10)},
      {"resnet50", "model:\n  name: resnet50\n" + images(224, 3, 1000)},
      {"gpt2", "model:\n  name: gpt\n  layers: 12\n  heads: 12\n  width: 768\n  vocabulary: 50304\n" + tokens(1024)},
      {"gpt4", "model:\n  name: gpt\n  layers: 4\n  heads: 8\n  width: 256\n  vocabulary: 256\n" + tokens(256)},
      {"gptchar", "model:\n  name: gpt\n  layers: 6\n  heads: 6\n  width: 384\n  vocabulary: 256\n" + tokens(256)},
      {"bert", "model:\n  name: bert\n  layers: 12\n  heads: 12\n  width: 768\n  vocabulary: 30720\n" + tokens(128)}};
  const auto it = all.find(name);
  if (it == all.end()) {
    throw ConfigError("--model: unknown workload " + name);
  }
  const bool adam = name.starts_with("gpt") || name == "bert";
  return it->second + (adam ? "optimizer:\n  name: adamw\n  learning_rate: 0.0001\n"
                            : "optimizer:\n  name: sgd\n  learning_rate: 0.01\n  momentum: 0.9\n");
}

}  // namespace

int main(int argc, char** argv) try {
  std::map<std::string, std::string> given = {{"model", "mlp"}, {"batch", "64"}, {"precision", "fp32"},
                                              {"device", "auto"}, {"threads", "auto"}, {"seconds", "2"},
                                              {"capture", "auto"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    given[std::string(argv[i]).substr(2)] = argv[i + 1];
  }
  log::set_level(log::Level::kWarning);
  const std::vector<std::string> set = {"train.batch=" + given["batch"], "train.precision=" + given["precision"],
                                        "train.device=" + given["device"], "train.threads=" + given["threads"],
                                        "train.capture=" + given["capture"], "data.samples=4096"};
  const io::Config config = io::parse_config(workload(given["model"]), given["model"], set);
  const trainers::Setup setup = trainers::make_setup(config);
  trainers::apply_process_settings(setup);
  const i64 batch = config.train.batch;
  const trainers::BatchPlan plan = trainers::plan_batch(setup, batch);
  trainers::StepRunner runner(setup.model, trainers::step_options(setup, setup.device, batch));
  {
    data::LoaderOptions o = trainers::loader_options(setup);
    o.batch = batch;
    o.max_bytes = i64{2} << 30;
    o.end = std::min<i64>(batch, setup.train->size());
    data::Loader loader(setup.train, o);
    const data::Batch b = loader.next(std::min(batch, loader.largest_batch()));
    runner.wait_copied(runner.load(b));
    loader.release(b);
  }
  StepInputs in;
  in.learning_rate = 1e-4F;
  in.momentum = 0.9F;
  in.inverse_targets = 1.0F / float(batch * std::max<i64>(1, setup.targets_per_sample));
  const auto step = [&] {
    runner.run({.count = batch, .inputs = in});
    runner.finish(batch, batch);
    runner.limit_ahead(8);
    runner.outcomes();
  };
  for (int i = 0; i < 10; ++i) {
    step();
  }
  runner.outcomes(true);
  const double seconds = std::stod(given["seconds"]);
  // Best of several windows: others share the machine.
  double best = 0;
  const double begin = measure::monotonic_seconds();
  double window = begin;
  int steps = 0;
  while (measure::monotonic_seconds() - begin < seconds || best == 0) {
    step();
    ++steps;
    const double now = measure::monotonic_seconds();
    if (now - window >= std::min(0.5, seconds / 4) && steps >= 3) {
      runner.outcomes(true);
      const double end = measure::monotonic_seconds();
      best = std::max(best, double(steps) * double(batch) / (end - window));
      window = end;
      steps = 0;
    }
  }
  const measure::StepCost cost = trainers::cost_of(setup, std::max<i64>(2, batch / 4), std::max<i64>(4, batch));
  const double flops = cost.flops(double(batch)) / double(batch) * best;
  const i64 memory = memory::stats(setup.device, Region::kPersistent).committed +
                     memory::stats(setup.device, Region::kStep).committed;
  std::printf("%-9s batch %-6lld %-5s %12.0f samples/s  %8.3f ms  %7.1f TFLOP/s  planned %.2f GiB  committed %.2f GiB%s\n",
              given["model"].c_str(), static_cast<long long>(batch), given["precision"].c_str(), best,
              1e3 * double(batch) / best, flops * 1e-12, double(plan.total()) / double(1 << 30),
              double(memory) / double(1 << 30),
              runner.eager_reason().empty() ? "" : ("  EAGER: " + runner.eager_reason()).c_str());
  std::printf("%s\n", io::Json(io::Json::object()
                                   .set("model", given["model"])
                                   .set("batch", batch)
                                   .set("precision", given["precision"])
                                   .set("samples_per_second", best)
                                   .set("step_ms", 1e3 * double(batch) / best)
                                   .set("flops_per_second", flops)
                                   .set("planned_bytes", plan.total())
                                   .set("committed_bytes", memory))
                          .dump()
                          .c_str());
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "train_speed: %s\n", e.what());
  return 1;
}
