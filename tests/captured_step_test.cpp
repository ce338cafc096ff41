// The training step end to end on either device: both regions, the plugin, a captured step.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/cuda.h"
#include "framework/core/random.h"
#include "framework/kernels/choice.h"
#include "framework/ops/linear.h"
#include "framework/ops/loss.h"
#include "framework/optim/optimizer.h"

namespace penstock {
namespace {

class Mlp : public nn::Module {
 public:
  Mlp(i64 in, i64 hidden, i64 out)
      : w1(parameter("fc1.weight", {hidden, in}, nn::Init::fan_in_uniform(in))),
        b1(parameter("fc1.bias", {hidden}, nn::Init::fan_in_uniform(in), false)),
        w2(parameter("fc2.weight", {hidden, hidden}, nn::Init::fan_in_uniform(hidden))),
        b2(parameter("fc2.bias", {hidden}, nn::Init::fan_in_uniform(hidden), false)),
        w3(parameter("fc3.weight", {out, hidden}, nn::Init::fan_in_uniform(hidden))),
        b3(parameter("fc3.bias", {out}, nn::Init::fan_in_uniform(hidden), false)) {}
  Tensor forward(const Tensor& x) {
    const Tensor h = ops::linear(x, w1, b1, ops::Activation::kRelu);
    return ops::linear(ops::linear(h, w2, b2, ops::Activation::kRelu), w3, b3);
  }
  nn::Parameter &w1, &b1, &w2, &b2, &w3, &b3;
};

struct Job {
  Device device;
  DType compute;
  Mlp model{784, 256, 10};
  nn::ParameterArena arena;
  optim::Optimizer optimizer;
  Tensor state;
  Tensor x, labels;  // persistent, sized for the largest batch

  Job(Device d, DType c, i64 largest)
      : device(d),
        compute(c),
        arena(model, {.device = d, .compute = c, .moments = 1, .seed = 7}),
        optimizer(arena, {.kind = optim::Kind::kSgd, .clip_norm = 5}),
        state(make_step_state(d)) {
    std::vector<float> values(std::size_t(largest * 784));
    std::vector<std::int64_t> targets(static_cast<std::size_t>(largest));
    random::Generator g(3, random::Stream::kSynthetic, 0, 0);
    for (float& v : values) {
      v = g.uniform(-1, 1);
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      targets[i] = std::int64_t(values[i * 784] > 0 ? 1 : 0) + std::int64_t(g.below(3));
    }
    x = Tensor::from(values, {largest, 784}, d);
    labels = Tensor::from(targets, {largest}, d);
  }

  void set_inputs(i64 batch) {
    StepInputs in;
    in.learning_rate = 0.05F;
    in.momentum = 0.9F;
    in.inverse_targets = 1.0F / float(batch);
    state.part(0, {i64(sizeof(StepInputs))}).load_host(&in);
  }

  void step(i64 batch) {
    const StepStateScope current(state);
    const amp::Scope precision(compute);
    StepScope scope(device);
    {
      optimizer.begin_step(state);
      arena.begin_step();
      Tensor logits = model.forward(amp::cast(x.rows(0, batch), compute));
      const ops::LossResult loss =
          ops::cross_entropy(std::move(logits), labels.rows(0, batch),
                             {.reduction = ops::Reduction::kStep});
      backward(loss.loss);
      arena.finish_gradients();
      optimizer.step(state);
    }
    scope.close();
  }
};

TEST(TrainingStep, LowersTheLossOnTheCpu) {
  Job job(kCpu, DType::f32, 64);
  const auto loss = [&] {
    const NoGrad no_grad;
    Tensor logits = job.model.forward(job.x);
    return ops::cross_entropy(std::move(logits), job.labels).loss.item();
  };
  const double before = loss();
  for (int i = 0; i < 30; ++i) {
    job.set_inputs(64);
    job.step(64);
  }
  EXPECT_LT(loss(), before * 0.7);
  EXPECT_EQ(memory::stats(kCpu, Region::kStep).used, 0);
}

TEST(TrainingStep, ATensorThatOutlivesTheStepIsNamed) {
  Job job(kCpu, DType::f32, 8);
  Tensor escaped;
  StepScope scope(kCpu);
  escaped = ops::linear(job.x, job.model.w1, job.model.b1);
  try {
    scope.close();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("linear"), std::string::npos) << e.what();
  }
}

class Captured : public testing::TestWithParam<DType> {};

// Graphs of two batch sizes share one step region; other threads query events, copy and register
// memory meanwhile; the numbers equal eager ones bit for bit.
TEST_P(Captured, EqualsEagerWithTwoBatchSizesAndBusyThreads) {
  if (!cuda::available()) {
    GTEST_SKIP() << cuda::status();
  }
  Job eager(kCuda, GetParam(), 512);
  Job captured(kCuda, GetParam(), 512);
  const std::vector<i64> sizes = {64, 512};
  // One eager step of each size chooses the algorithms; parameters go back afterwards.
  const Tensor masters = captured.arena.masters().to(kCpu);
  const Tensor moments = captured.arena.moments()[0].to(kCpu);
  const auto restore = [&](Job& job) {
    job.arena.masters().copy_from(masters);
    job.arena.moments()[0].copy_from(moments);
    job.arena.refresh_low_precision();
    const StepState initial;
    job.state.load_host(&initial);
  };
  for (const i64 n : sizes) {
    captured.set_inputs(n);
    captured.step(n);
  }
  restore(captured);
  const i64 choices = kernels::choices_made();

  std::atomic<bool> stop{false};
  std::thread loader([&] {
    std::vector<char> host(1 << 22);
    const bool pinned = cuda::register_host(host.data(), i64(host.size()));
    cuda::Event event;
    const Tensor staging = Tensor::empty({1 << 22}, DType::u8, kCuda);
    while (!stop) {
      cuda::copy_async(staging.raw(), host.data(), 1 << 22, cuda::copy_stream());
      event.record(cuda::copy_stream());
      event.synchronize();
    }
    if (pinned) {
      cuda::unregister_host(host.data());
    }
  });
  std::thread meter([&] {
    while (!stop) {
      (void)cuda::free_memory();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::vector<cuda::Graph> graphs(2);
  for (std::size_t i = 0; i < 2; ++i) {
    graphs[i].begin();
    captured.step(sizes[i]);
    graphs[i].end();
  }
  restore(eager);
  restore(captured);
  for (int step = 0; step < 200; ++step) {
    const std::size_t i = step % 3 == 0 ? 1 : 0;
    eager.set_inputs(sizes[i]);
    eager.step(sizes[i]);
    captured.set_inputs(sizes[i]);
    graphs[i].launch(cuda::compute_stream());
    if (step == 100) {
      // A growing region moves nothing that graphs point at.
      memory::commit(kCuda, Region::kStep, memory::stats(kCuda, Region::kStep).committed + (1 << 28));
    }
  }
  stop = true;
  loader.join();
  meter.join();
  EXPECT_EQ(kernels::choices_made(), choices);
  const auto a = eager.arena.masters().values<float>();
  const auto b = captured.arena.masters().values<float>();
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  StepState state;
  captured.state.store_host(&state);
  EXPECT_EQ(state.applied, 200);
  EXPECT_GT(graphs[0].nodes(), 10);
}

INSTANTIATE_TEST_SUITE_P(Precisions, Captured, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

}  // namespace
}  // namespace penstock
