// Every model of the zoo through the real step.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/core/cuda.h"
#include "framework/kernels/onednn.h"
#include "tests/zoo.h"

namespace penstock {
namespace {

using trainers::StepOptions;
using trainers::StepRunner;

StepOptions options_of(const zoo::Entry& e, Device device, i64 largest,
                       DType compute = DType::f32) {
  return {.device = device,
          .compute = compute,
          .seed = 3,
          .optimizer = {.kind = optim::Kind::kAdamW, .scale_loss = compute == DType::f16},
          .fields = e.fields,
          .largest = largest};
}

StepInputs inputs_of(const zoo::Entry& e, i64 batch, float rate) {
  StepInputs in;
  in.learning_rate = rate;
  in.inverse_targets = 1.0F / float(batch * (e.fields[0].name == "input" ? e.model.input[0] : 1));
  return in;
}

class Zoo : public testing::TestWithParam<zoo::Entry> {};

// The plan is the step: what meta says is what memory shows, to the byte.
TEST_P(Zoo, PlannedMemoryIsTheHighWaterMark) {
  const zoo::Entry& e = GetParam();
  std::vector<std::pair<i64, DType>> cases = {{1, DType::f32}, {3, DType::f32}, {8, DType::f32}};
  if (kernels::cpu_bf16_usable()) {
    cases.emplace_back(3, DType::bf16);
  }
  for (const auto& [batch, compute] : cases) {
    if (batch == 1 && models::build_model(e.model)->uses_batch_norm() && e.name == "resnet50") {
      continue;  // its last stage would have one value per channel
    }
    i64 planned[2] = {};
    i64 real[2] = {};
    i64 planned_eval = 0;
    i64 real_eval = 0;
    SCOPED_TRACE(format("{}, batch {}, {}", e.name, batch, compute));
    const auto measure = [&, batch = batch, compute = compute](Device device, i64* to, i64& eval) {
      const i64 persistent_before = memory::stats(device, Region::kPersistent).used;
      memory::reset_high_water(device);
      const i64 base = memory::stats(device, Region::kPersistent).high_water;
      StepRunner runner(e.model, options_of(e, device, batch, compute));
      if (!device.is_meta()) {
        const zoo::Samples samples(e, batch);
        runner.load(samples.batch);
        runner.run({.count = batch, .inputs = inputs_of(e, batch, 1e-3F)});
        runner.finish(batch, batch);
        runner.outcomes(true);
      } else {
        runner.run({.count = batch});
        runner.finish(batch, batch);
      }
      EXPECT_EQ(memory::stats(device, Region::kStep).used, 0);
      to[0] = memory::stats(device, Region::kPersistent).high_water - base;
      to[1] = memory::stats(device, Region::kStep).high_water;
      memory::reset_high_water(device);
      (void)runner.evaluate(batch);
      eval = memory::stats(device, Region::kStep).high_water;
      EXPECT_GE(memory::stats(device, Region::kPersistent).used, persistent_before);
    };
    measure(kCpu, real, real_eval);
    measure(meta_of(kCpu), planned, planned_eval);
    EXPECT_EQ(planned[0], real[0]) << "persistent";
    EXPECT_EQ(planned[1], real[1]) << "step";
    EXPECT_EQ(planned_eval, real_eval) << "evaluation";
  }
}

void expect_learns(const zoo::Entry& e, Device device, DType compute) {
  const i64 batch = 8;
  StepRunner runner(e.model, options_of(e, device, batch, compute));
  const zoo::Samples samples(e, batch);
  double first = 0;
  double last = 0;
  // The large ones need fewer steps for it, and take longer over each.
  const int steps = device.is_cpu() && e.name.starts_with("resnet") ? 8 : 30;
  for (int i = 0; i < steps; ++i) {
    runner.load(samples.batch);
    StepInputs in = inputs_of(e, batch, 3e-3F);
    in.position = i * batch;
    runner.run({.count = batch, .inputs = in});
    runner.finish(batch, batch * (e.fields[0].name == "input" ? e.model.input[0] : 1));
    for (const trainers::StepOutcome& o : runner.outcomes(true)) {
      if (i == 0) {
        first = o.loss;
      }
      last = o.loss;
      EXPECT_TRUE(std::isfinite(o.loss)) << e.name << " step " << i;
    }
  }
  EXPECT_LT(last, 0.9 * first) << e.name;
}

TEST_P(Zoo, LearnsOneBatchByHeart) {
  expect_learns(GetParam(), kCpu, DType::f32);
}

TEST_P(Zoo, LearnsInBf16WhereTheCpuCan) {
  if (!kernels::cpu_bf16_usable()) {
    GTEST_SKIP() << "no bf16 arithmetic on this CPU";
  }
  expect_learns(GetParam(), kCpu, DType::bf16);
}

TEST_P(Zoo, LearnsOnCuda) {
  if (!cuda::available()) {
    GTEST_SKIP() << cuda::status();
  }
  for (const DType compute : {DType::f32, DType::f16, DType::bf16}) {
    expect_learns(GetParam(), kCuda, compute);
  }
}

// Two halves with gradient accumulation are one batch, whatever their sizes; models without batch
// statistics and dropout give it to rounding.
TEST(Accumulation, UnequalMicroBatchesAddUpToTheBatch) {
  for (const zoo::Entry& e : zoo::entries()) {
    if (models::build_model(e.model)->uses_batch_norm() || e.model.dropout > 0) {
      continue;
    }
    const i64 tokens = e.fields[0].name == "input" ? e.model.input[0] : 1;
    std::vector<std::vector<float>> gradients;
    for (const std::vector<i64>& parts : std::vector<std::vector<i64>>{{8}, {5, 3}, {1, 6, 1}}) {
      StepRunner runner(e.model, options_of(e, kCpu, 8));
      const zoo::Samples samples(e, 8);
      i64 begin = 0;
      for (std::size_t k = 0; k < parts.size(); ++k) {
        trainers::HostBatch part;
        part.count = parts[k];
        for (std::size_t f = 0; f < e.fields.size(); ++f) {
          part.fields.push_back(
              {{samples.fields[f].data() + begin * e.fields[f].bytes(), parts[k]}});
        }
        runner.load(part);
        StepInputs in = inputs_of(e, 8, 0);
        in.position = begin;
        runner.run({.count = parts[k], .first = k == 0, .inputs = in});
        begin += parts[k];
      }
      gradients.push_back(runner.arena().gradients().values<float>());
      runner.finish(8, 8 * tokens);
      runner.outcomes(true);
    }
    for (std::size_t k = 1; k < gradients.size(); ++k) {
      double difference = 0;
      double norm = 0;
      for (std::size_t i = 0; i < gradients[0].size(); ++i) {
        difference += std::pow(double(gradients[k][i]) - double(gradients[0][i]), 2);
        norm += std::pow(double(gradients[0][i]), 2);
      }
      EXPECT_LT(std::sqrt(difference / norm), 1e-5) << e.name;
    }
  }
}

// A block that is run again gives the same gradients, dropout included.
TEST(Recompute, GivesTheSameGradients) {
  std::vector<std::vector<float>> gradients;
  for (const zoo::Entry& e : zoo::entries()) {
    if (e.model.name != "gpt") {
      continue;
    }
    StepRunner runner(e.model, options_of(e, kCpu, 4));
    const zoo::Samples samples(e, 4);
    runner.load(samples.batch);
    runner.run({.count = 4, .inputs = inputs_of(e, 4, 0)});
    gradients.push_back(runner.arena().gradients().values<float>());
    runner.finish(4, 64);
    runner.outcomes(true);
  }
  ASSERT_EQ(gradients.size(), 2u);
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < gradients[0].size(); ++i) {
    difference += std::pow(double(gradients[0][i]) - double(gradients[1][i]), 2);
    norm += std::pow(double(gradients[0][i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LT(std::sqrt(difference / norm), 1e-6);
}

// What a layer more costs: its input with recomputation, everything in it without.
TEST(Recompute, ALayerMoreKeepsItsInputOnly) {
  const auto step_bytes = [](i64 layers, bool recompute) {
    zoo::Entry e;
    for (const zoo::Entry& known : zoo::entries()) {
      if (known.name == "gpt") {
        e = known;
      }
    }
    e.model.layers = layers;
    e.model.recompute_blocks = recompute;
    StepRunner runner(e.model, options_of(e, meta_of(kCpu), 4));
    memory::reset_high_water(meta_of(kCpu));
    runner.run({.count = 4});
    return memory::stats(meta_of(kCpu), Region::kStep).high_water;
  };
  const i64 input = 4 * 16 * 32 * 4;  // [N, T, C]
  EXPECT_EQ(step_bytes(12, true) - step_bytes(11, true), input);
  EXPECT_GT(step_bytes(12, false) - step_bytes(11, false), 10 * input);
}

TEST(Model, UnknownNamesAreRefusedWithTheKnownOnes) {
  try {
    (void)models::build_model({.name = "resnet19", .input = {8, 8, 3}});
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("resnet18"), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Zoo, testing::ValuesIn(zoo::entries()), [](const auto& test) {
  std::string name = test.param.name;
  for (char& c : name) {
    c = c == ' ' ? '_' : c;
  }
  return name;
});

}  // namespace
}  // namespace penstock
