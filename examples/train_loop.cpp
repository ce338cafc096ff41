// A whole training loop on the library alone: a module, an arena, an optimizer, a loop. It learns to tell
// points inside a circle from points outside.
#include <cstdio>
#include <vector>

#include "framework/autograd/autograd.h"
#include "framework/core/random.h"
#include "framework/nn/layers.h"
#include "framework/ops/loss.h"
#include "framework/optim/optimizer.h"

using namespace penstock;

namespace {

class Classifier : public nn::Module {
 public:
  Classifier() : hidden_({.in = 2, .out = 64}), out_({.in = 64, .out = 2}) {
    child("hidden", hidden_);
    child("out", out_);
  }
  Tensor operator()(const Tensor& x) const {  // [N, 2] to [N, 2]
    return out_(hidden_(x, ops::Activation::kRelu));
  }

 private:
  nn::Linear hidden_, out_;
};

}  // namespace

int main() {
  constexpr i64 kBatch = 256;
  Classifier model;
  // The arena gives the model memory: weights, gradients and moments, each one array.
  nn::ParameterArena arena(model, {.device = kCpu, .moments = 2, .seed = 1});
  optim::Optimizer optimizer(arena, {.kind = optim::Kind::kAdam});
  const Tensor state = make_step_state(kCpu);

  random::Generator g(7, random::Stream::kSynthetic, 0, 0);
  double accuracy = 0;
  for (int step = 1; step <= 400; ++step) {
    std::vector<float> points(2 * kBatch);
    std::vector<std::int64_t> labels(kBatch);
    for (i64 i = 0; i < kBatch; ++i) {
      const float x = g.uniform(-1, 1);
      const float y = g.uniform(-1, 1);
      points[std::size_t(2 * i)] = x;
      points[std::size_t(2 * i + 1)] = y;
      labels[std::size_t(i)] = x * x + y * y < 0.5F ? 1 : 0;
    }
    const Tensor input = Tensor::from(points, {kBatch, 2}, kCpu);
    const Tensor target = Tensor::from(labels, {kBatch}, kCpu);

    // What changes from step to step is told in one struct, so that a captured step can read it too.
    StepInputs in;
    in.learning_rate = 0.01F;
    in.inverse_targets = 1.0F / float(kBatch);
    state.part(0, {i64(sizeof in)}).load_host(&in);

    const StepStateScope current(state);
    StepScope scope(kCpu);  // everything below lives in the step region and is gone at its end
    {
      optimizer.begin_step(state);
      arena.begin_step();
      const ops::LossResult loss =
          ops::cross_entropy(model(input), target, {.reduction = ops::Reduction::kStep});
      backward(loss.loss);
      arena.finish_gradients();
      optimizer.step(state);
      accuracy = loss.correct.item() / double(kBatch);
      if (step % 100 == 0) {
        std::printf("step %d: loss %.4f, accuracy %.1f %%\n", step, loss.loss.item() / double(kBatch),
                    100 * accuracy);
      }
    }
    scope.close();
  }
  return accuracy > 0.95 ? 0 : 1;
}
