// The tape: what it accumulates, refuses, and survives.
#include "framework/autograd/autograd.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cmath>
#include <limits>

#include "framework/autograd/amp.h"
#include "framework/nn/arena.h"
#include "framework/nn/layers.h"
#include "framework/ops/linear.h"
#include "framework/ops/loss.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/reduce.h"
#include "framework/ops/shape_ops.h"
#include "models/model.h"

namespace penstock {
namespace {

Tensor scalar(float v) {
  return Tensor::from(std::vector<float>{v}, {1}, kCpu);
}
Tensor vector(std::vector<float> v) {
  const Shape shape = {i64(v.size())};
  return Tensor::from(v, shape, kCpu);
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// ---- deep and wide graphs
// ------------------------------------------------------------------------

// Runs `f` with a stack that recursion over a few thousand nodes would overflow.
void on_small_stack(void (*f)()) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{256} << 10), 0);
  pthread_t thread;
  const auto enter = [](void* what) -> void* {
    reinterpret_cast<void (*)()>(what)();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, enter, reinterpret_cast<void*>(f)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(DeepGraph, NegationsOfAnEvenAndAnOddNumberGiveTheirSign) {
  on_small_stack([] {
    for (const int n : {200'000, 200'001}) {
      const Tensor x = leaf(scalar(2));
      Tensor y = x;
      for (int i = 0; i < n; ++i) {
        y = ops::neg(y);
      }
      backward(y);
      EXPECT_EQ(grad(x).item(), n % 2 == 0 ? 1 : -1);
    }
  });
}

// The closures of products own the tensors that they multiply, and through them nodes.
TEST(DeepGraph, IsDroppedWithoutBackward) {
  const i64 before = memory::stats(kCpu, Region::kPersistent).used;
  on_small_stack([] {
    const Tensor x = leaf(scalar(1));
    Tensor sum = x;
    Tensor product = x;
    Tensor both = x;
    for (int i = 0; i < 200'000; ++i) {
      sum = ops::neg(sum);
      product = ops::mul(product, x);
      if (i % 4 == 0) {
        both = ops::add(ops::mul(both, both), ops::maximum(both, x));
      }
    }
  });
  EXPECT_EQ(memory::stats(kCpu, Region::kPersistent).used, before);
}

TEST(DeepGraph, WideFanOutAndFanInAddUpExactly) {
  on_small_stack([] {
    const Tensor x = leaf(scalar(1));
    Tensor sum = ops::neg(x);
    for (int i = 1; i < 20'000; ++i) {
      sum = ops::add(sum, ops::neg(x));
    }
    backward(sum);
    EXPECT_EQ(grad(x).item(), -20'000);
    // Every level uses the one below twice: 2^20 paths, 20 nodes.
    const Tensor z = leaf(scalar(1));
    Tensor y = z;
    for (int i = 0; i < 20; ++i) {
      y = ops::add(y, y);
    }
    backward(y);
    EXPECT_EQ(grad(z).item(), double(1 << 20));
  });
}

// ---- accumulation
// --------------------------------------------------------------------------------

TEST(Backward, OverwritesUnlessItAccumulates) {
  const Tensor w = leaf(vector({1, 2, 3}));
  const auto pass = [&](double factor, bool accumulate) {
    backward(ops::sum(ops::scale(w, factor)), {.accumulate = accumulate});
  };
  pass(2, false);
  EXPECT_EQ(grad(w).values<float>(), (std::vector<float>{2, 2, 2}));
  pass(3, false);
  EXPECT_EQ(grad(w).values<float>(), (std::vector<float>{3, 3, 3}));
  pass(4, true);
  EXPECT_EQ(grad(w).values<float>(), (std::vector<float>{7, 7, 7}));
}

// A weight that several ops write into directly: the first overwrites, the others add.
TEST(Backward, ATiedWeightGetsTheSumOfItsUses) {
  const Tensor w = leaf(Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2}, kCpu));
  const Tensor x = Tensor::from(std::vector<float>{1, -1}, {1, 2}, kCpu);
  const Tensor once = ops::linear(x, w, Tensor());
  backward(ops::sum(ops::linear(once, w, Tensor())));
  // y = w (w x): d/dw of 1'y = 1 h' + w' 1 x' with h = w x.
  EXPECT_EQ(grad(w).values<float>(), (std::vector<float>{-1 + 4, -1 - 4, -1 + 6, -1 - 6}));
}

TEST(Backward, SumsOverBroadcastAxesAndCastsBack) {
  const Tensor a = leaf(Tensor::zeros({3, 1}, DType::f32, kCpu));
  const Tensor b = leaf(Tensor::zeros({4}, DType::f64, kCpu));
  const Tensor y = ops::add(ops::cast(a, DType::bf16), b);
  EXPECT_EQ(y.shape(), (Shape{3, 4}));
  backward(ops::sum(y));
  EXPECT_EQ(grad(a).shape(), (Shape{3, 1}));
  EXPECT_EQ(grad(a).dtype(), DType::f32);
  EXPECT_EQ(grad(a).values<float>(), (std::vector<float>{4, 4, 4}));
  EXPECT_EQ(grad(b).dtype(), DType::f64);
  EXPECT_EQ(grad(b).values<float>(), (std::vector<float>{3, 3, 3, 3}));
}

TEST(Backward, AddingIntoAGradientLeavesTheOneItCameFromAlone) {
  // add() hands the same gradient to both sides; what arrives later must not change it in place.
  const Tensor a = leaf(vector({1, 2}));
  const Tensor u = ops::scale(a, 1);
  const Tensor v = ops::scale(a, 10);
  const Tensor sum = ops::add(u, v);
  backward(ops::sum(ops::add(sum, ops::scale(u, 100))));
  EXPECT_EQ(grad(a).values<float>(), (std::vector<float>{111, 111}));
}

TEST(Backward, UnusedOutputsOfAnOpCountAsZero) {
  const Tensor x = leaf(vector({1, 2}));
  const std::vector<Tensor> both =
      record_all("two", {x.detached(), x.detached()}, {x}, [](Backward& b) {
        EXPECT_FALSE(b.dy(0).defined());
        b.set(0, ops::scale(b.dy(1), 5));
      });
  backward(ops::sum(both[1]));
  EXPECT_EQ(grad(x).values<float>(), (std::vector<float>{5, 5}));
}

TEST(Backward, AsksOnlyForWantedGradients) {
  const Tensor x = leaf(vector({1}));
  const Tensor y = record("asked", x.detached(), {x, vector({2})}, [](Backward& b) {
    EXPECT_TRUE(b.wants(0));
    EXPECT_FALSE(b.wants(1));
    EXPECT_TRUE(b.has_sink(0));
    EXPECT_FALSE(b.has_sink(1));
    b.set(0, b.dy());
    b.set(1, b.dy());  // nobody wants it: ignored
  });
  backward(y);
  EXPECT_EQ(grad(x).item(), 1);
}

TEST(Backward, TellsWhenALeafIsComplete) {
  const Tensor early = leaf(vector({1}), "early");
  const Tensor late = leaf(vector({1}), "late");
  std::vector<std::string> order;
  set_grad_ready_hook([&](const Tensor& l) { order.push_back(leaf_name(l)); });
  const Tensor h = ops::mul(early, early);
  backward(ops::mul(ops::mul(h, late), late));
  set_grad_ready_hook(nullptr);
  EXPECT_EQ(order, (std::vector<std::string>{"late", "early"}));
}

// ---- refusals
// ------------------------------------------------------------------------------------

TEST(Backward, RefusesASpentGraphByTheOpsName) {
  const Tensor x = leaf(vector({1}));
  const Tensor y = ops::square(x);
  backward(y);
  EXPECT_NE(message_of([&] { backward(y); }).find("square"), std::string::npos);
  EXPECT_NE(message_of([&] { backward(ops::neg(y)); }).find("square"), std::string::npos);
}

TEST(Backward, RefusesAParameterThatChangedSinceTheForwardPass) {
  const Tensor w = leaf(vector({1}), "fc.weight");
  const Tensor y = ops::square(w);
  bump_version(w);
  EXPECT_NE(message_of([&] { backward(y); }).find("fc.weight"), std::string::npos);
}

TEST(Backward, RefusesWhatItCannotStartFrom) {
  const Tensor x = leaf(vector({1, 2}));
  EXPECT_NE(message_of([&] { backward(ops::neg(x)); }).find("seed"), std::string::npos);
  EXPECT_NE(message_of([&] { backward(ops::neg(x), {.seed = vector({1})}); }).find("seed"),
            std::string::npos);
  EXPECT_NE(message_of([&] { backward(vector({1})); }).find("does not depend"), std::string::npos);
  EXPECT_NE(
      message_of([&] { (void)leaf(Tensor::zeros({1}, DType::i64, kCpu), "ids"); }).find("ids"),
      std::string::npos);
}

TEST(NoGrad, RecordsNothingAndNests) {
  const Tensor x = leaf(vector({1}));
  {
    const NoGrad off;
    EXPECT_FALSE(ops::neg(x).needs_grad());
    {
      const WithGrad on;
      EXPECT_TRUE(ops::neg(x).needs_grad());
    }
    EXPECT_FALSE(ops::neg(x).needs_grad());
  }
  EXPECT_TRUE(ops::neg(x).needs_grad());
}

// ---- mixed precision
// -----------------------------------------------------------------------------

TEST(Amp, ReadsTheTwinAndSendsTheGradientToTheMaster) {
  const Tensor w = leaf(vector({1, 2}));
  set_low_precision(w, Tensor::from(std::vector<bf16>{bf16(3), bf16(4)}, {2}, kCpu));
  const Tensor low = amp::cast(w, DType::bf16);
  EXPECT_EQ(low.values<float>(), (std::vector<float>{3, 4}));
  backward(ops::sum(ops::scale(low, 2)));
  EXPECT_EQ(grad(w).dtype(), DType::f32);
  EXPECT_EQ(grad(w).values<float>(), (std::vector<float>{2, 2}));
}

// ---- memory
// --------------------------------------------------------------------------------------

struct Used {
  i64 persistent = memory::stats(kCpu, Region::kPersistent).used;
  i64 step = memory::stats(kCpu, Region::kStep).used;
  bool operator==(const Used&) const = default;
};

TEST(OutOfMemory, LeavesNoTraceAHundredTimes) {
  const Tensor a = Tensor::zeros({64, 64}, DType::f32, kCpu);
  const Used before;
  for (int i = 0; i < 100; ++i) {
    try {
      (void)Tensor::empty({i64{1} << 40}, DType::u8, kCpu);
      FAIL() << "1 TiB was given";
    } catch (const OutOfMemory& e) {
      EXPECT_EQ(e.code(), ExitCode::kMemory);
    }
    EXPECT_EQ(ops::matmul(a, a).dim(0), 64);
    EXPECT_EQ(Used(), before);
  }
}

// A training step that fails anywhere, forward or backward, and is caught: the same bytes are in
// use as before, and the step after gives the same gradients as if nothing had happened.
class FailingStep {
 public:
  FailingStep()
      : model_(models::build_model({.name = "gpt",
                                    .input = {16},
                                    .layers = 2,
                                    .heads = 2,
                                    .width = 32,
                                    .vocabulary = 64,
                                    .recompute_blocks = true})),
        arena_(*model_, {.device = kCpu, .seed = 1}) {
    std::vector<std::int32_t> ids(64);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = std::int32_t(i * 29 % 64);
    }
    batch_ = {.input = Tensor::from(ids, {4, 16}, kCpu), .target = Tensor::from(ids, {64}, kCpu)};
  }
  // Returns the gradients; throws when the step's activations pass `limit` bytes.
  std::vector<float> run(i64 limit) {
    struct Limited {
      explicit Limited(i64 bytes) {
        memory::trim(kCpu);
        const i64 held = memory::stats(kCpu, Region::kPersistent).committed;
        memory::set_limit(kCpu, bytes == kNone ? kNone : held + bytes);
      }
      ~Limited() { memory::set_limit(kCpu, kNone); }
    };
    const Limited limited(limit);
    StepScope scope(kCpu);
    {
      arena_.begin_step();
      const Tensor loss = model_->loss(batch_, ops::Reduction::kMean).loss;
      backward(loss);
      arena_.finish_gradients();
    }
    scope.close();
    return arena_.gradients().values<float>();
  }
  static constexpr i64 kNone = std::numeric_limits<i64>::max();

 private:
  std::unique_ptr<models::Model> model_;
  nn::ParameterArena arena_;
  models::Batch batch_;
};

TEST(OutOfMemory, AStepThatFailsAnywhereCanBeRunAgain) {
  FailingStep job;
  const std::vector<float> expected = job.run(FailingStep::kNone);
  const Used before;
  // Regions grow in steps of 2 MiB, so a closure that asks for too much sets the place of failure.
  int failures = 0;
  for (const i64 limit : {i64{0}, i64{1} << 20}) {
    for (int i = 0; i < 5; ++i) {
      try {
        (void)job.run(limit);
      } catch (const OutOfMemory&) {
        ++failures;
      }
      EXPECT_EQ(Used(), before);
    }
  }
  EXPECT_EQ(failures, 10);
  EXPECT_EQ(job.run(FailingStep::kNone), expected);
}

TEST(OutOfMemory, ABackwardPassThatFailsHalfWayLeavesNoTrace) {
  const Tensor w = leaf(Tensor::zeros({32, 32}, DType::f32, kCpu), "w");
  const Tensor x = Tensor::zeros({8, 32}, DType::f32, kCpu);
  backward(ops::sum(ops::linear(x, w, Tensor())));  // makes the gradient
  const Used before;
  for (int i = 0; i < 100; ++i) {
    const int fails_at = i % 10;
    StepScope scope(kCpu);
    try {
      Tensor y = x;
      for (int k = 0; k < 10; ++k) {
        y = ops::linear(y, w, Tensor());
        if (k == fails_at) {
          y = record("greedy", y.detached(), {y},
                     [](Backward& b) { b.set(0, Tensor::empty({i64{1} << 40}, DType::u8, kCpu)); });
        }
      }
      backward(ops::sum(y));
      FAIL() << "1 TiB was given";
    } catch (const OutOfMemory& e) {
      EXPECT_NE(std::string(e.what()).find("greedy"), std::string::npos) << e.what();
    }
    scope.close();
    EXPECT_EQ(Used(), before);
  }
}

TEST(StepScope, NamesTheOpWhoseTensorOutlivesIt) {
  const Tensor x = leaf(vector({1, 2}));
  Tensor total;
  StepScope scope(kCpu);
  total = ops::sum(ops::exp(x));  // the graph keeps what exp() made as well
  const std::string message = message_of([&] { scope.close(); });
  EXPECT_NE(message.find("'exp'"), std::string::npos) << message;
  EXPECT_NE(message.find("keep()"), std::string::npos) << message;
  total = Tensor();
  EXPECT_EQ(memory::stats(kCpu, Region::kStep).used, 0);
}

TEST(StepScope, KeepCopiesWhatMustStay) {
  const Tensor x = leaf(vector({1, 2}));
  Tensor total;
  StepScope scope(kCpu);
  total = keep(ops::sum(ops::square(x)));
  scope.close();
  EXPECT_EQ(total.item(), 5);
  EXPECT_FALSE(total.needs_grad());
}

// ---- recomputation
// -------------------------------------------------------------------------------

class Shared : public nn::Module {
 public:
  Shared() : fc({.in = 8, .out = 8}) { child("fc", fc); }
  nn::Linear fc;
};

// One layer used by two recomputed blocks, and by more outside of any: its gradient is the sum.
TEST(Recompute, SharedWeightsGetEveryContribution) {
  Shared model;
  nn::ParameterArena arena(model, {.device = kCpu, .seed = 4});
  std::vector<float> values(24);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = float(int(i * 7 % 11) - 5) / 5;
  }
  const Tensor x = leaf(Tensor::from(values, {3, 8}, kCpu));
  const auto block = [&](const Tensor& h) { return ops::tanh(model.fc(h)); };
  bool outside = false;
  const auto gradients = [&](bool recomputed, bool accumulate) {
    const auto run = [&](const Tensor& h) {
      return recomputed ? nn::recompute(block, h) : block(h);
    };
    if (!accumulate) {
      arena.begin_step();
    }
    const Tensor y = outside ? run(block(run(block(x)))) : run(run(x));
    backward(ops::sum(y), {.accumulate = accumulate});
    return arena.gradients().values<float>();
  };
  for (int i = 0; i < 4; ++i) {
    outside = i % 2 == 0;
    const bool accumulate = i / 2 == 1;
    (void)gradients(false, false);
    const std::vector<float> plain = gradients(false, accumulate);
    (void)gradients(true, false);
    EXPECT_EQ(gradients(true, accumulate), plain) << outside << accumulate;
  }
}

// The second run happens in the precision of the first, wherever backward() is called.
TEST(Recompute, KeepsThePrecisionOfTheForwardPass) {
  std::vector<DType> seen;
  const Tensor x = leaf(Tensor::zeros({2, 3}, DType::f32, kCpu));
  Tensor y;
  {
    const amp::Scope precision(DType::bf16);
    y = nn::recompute(
        [&](const Tensor& h) {
          seen.push_back(amp::compute_dtype());
          return ops::scale(h, 2);
        },
        ops::scale(x, 1));
  }
  backward(ops::sum(y));
  EXPECT_EQ(seen, (std::vector<DType>{DType::bf16, DType::bf16}));
  EXPECT_EQ(grad(x).values<float>()[0], 2);
}

}  // namespace
}  // namespace penstock
