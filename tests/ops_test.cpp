// The op table: gradients against finite differences in f64, each dtype against f64, CUDA against
// the CPU, refusals, views, and the ledger.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "framework/autograd/autograd.h"
#include "framework/core/cuda.h"
#include "framework/core/ledger.h"
#include "framework/core/random.h"
#include "framework/kernels/onednn.h"
#include "tests/ops/op_table.h"

namespace penstock {
namespace {

using testing_ops::Input;
using testing_ops::op_table;
using testing_ops::OpCase;

struct Values {
  std::vector<double> v;
};

double rounded(double v, DType dtype) {
  switch (dtype) {
    case DType::f16: return double(float(f16(float(v))));
    case DType::bf16: return double(float(bf16(float(v))));
    case DType::f32: return double(float(v));
    default: return v;
  }
}

// Host values of every input, rounded to `dtype` so that f64 sees what the narrow run sees.
std::vector<Values> draw(const OpCase& c, DType dtype) {
  std::vector<Values> out;
  for (std::size_t k = 0; k < c.inputs.size(); ++k) {
    const Input& in = c.inputs[k];
    random::Generator g(11, random::Stream::kSynthetic, std::uint32_t(k), 5);
    Values values;
    for (i64 i = 0; i < in.shape.numel(); ++i) {
      if (in.index) {
        values.v.push_back(double(g.below(std::uint32_t(in.classes))));
      } else if (in.boolean) {
        values.v.push_back(double(g.below(2)));
      } else {
        // 37 shares no factor with the sizes of the table: a permutation of the grid.
        const double at = in.distinct ? double((i * 37 + 11) % in.shape.numel()) /
                                            double(in.shape.numel())
                                      : double(g.uniform());
        const double x = in.low + (in.high - in.low) * at;
        values.v.push_back(rounded(x, in.wide && dtype != DType::f64 ? DType::f32 : dtype));
      }
    }
    out.push_back(std::move(values));
  }
  return out;
}

template <class T>
Tensor make(const std::vector<double>& v, const Shape& shape, Device device, bool offset) {
  std::vector<T> typed;
  if (offset) {
    typed.emplace_back();
  }
  for (const double x : v) {
    if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
      typed.push_back(T(float(x)));
    } else {
      typed.push_back(T(x));
    }
  }
  if (offset) {
    return Tensor::from(std::span<const T>(typed), {i64(typed.size())}, device).part(1, shape);
  }
  return Tensor::from(std::span<const T>(typed), shape, device);
}

Tensor make(const Input& in, const Values& values, DType dtype, Device device, bool offset) {
  if (in.boolean) {
    std::unique_ptr<bool[]> b(new bool[values.v.size() + 1]);
    for (std::size_t i = 0; i < values.v.size(); ++i) {
      b[i] = values.v[i] != 0;
    }
    return Tensor::from(std::span<const bool>(b.get(), values.v.size()), in.shape, device);
  }
  const DType d = in.index                            ? in.index_dtype
                  : in.wide && dtype != DType::f64 ? DType::f32
                                                      : dtype;
  return visit_any(d, [&]<class T>() {
    if constexpr (std::is_same_v<T, bool>) {
      return Tensor();
    } else {
      return make<T>(values.v, in.shape, device, offset && !in.index);
    }
  });
}

struct Outcome {
  std::vector<double> y;
  std::vector<std::vector<double>> grads;  // by input; empty where not differentiable
  DType dtype = DType::f64;
};

// Weights that turn an output into a scalar: fixed, of mixed sign.
std::vector<double> weights(i64 n) {
  random::Generator g(17, random::Stream::kSynthetic, 99, 5);
  std::vector<double> w(static_cast<std::size_t>(n));
  for (double& v : w) {
    v = double(g.uniform(-1, 1));
  }
  return w;
}

// `rounding`: the dtype that the seed gradient is rounded to, so that f64 sees the narrow run's.
Outcome evaluate(const OpCase& c, const std::vector<Values>& values, DType dtype, Device device,
                 bool offset = false, DType rounding = DType::f64) {
  std::vector<Tensor> inputs;
  for (std::size_t k = 0; k < c.inputs.size(); ++k) {
    const Tensor x = make(c.inputs[k], values[k], dtype, device, offset);
    const bool leaf_wanted =
        c.inputs[k].differentiable && !c.inputs[k].index && !c.inputs[k].boolean;
    inputs.push_back(leaf_wanted ? leaf(x, "input " + std::to_string(k)) : x);
  }
  Outcome out;
  const Tensor y = c.call(inputs);
  out.y = y.values<double>();
  out.dtype = y.dtype();
  if (y.needs_grad()) {
    Values w{weights(y.numel())};
    for (double& v : w.v) {
      v = rounded(v, rounding);
    }
    const Input as{.shape = y.shape()};
    backward(y, {.seed = make(as, w, y.dtype(), device, false)});
  }
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const bool is_leaf = inputs[k].needs_grad() && grad(inputs[k]).defined();
    out.grads.push_back(is_leaf ? grad(inputs[k]).values<double>() : std::vector<double>{});
    if (is_leaf) {
      EXPECT_EQ(grad(inputs[k]).shape(), inputs[k].shape()) << c.name;
    }
  }
  return out;
}

// |a - b| / |b|, norm-wise; absolute where b vanishes.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) {
      return std::isnan(a[i]) && std::isnan(b[i]) ? 0 : HUGE_VAL;
    }
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / std::max(1e-3, std::sqrt(norm));
}

std::string describe(const OpCase& c) {
  std::string out = c.name + "(";
  for (const Input& in : c.inputs) {
    out += to_string(in.shape) + " ";
  }
  return out + ")";
}

TEST(OpTable, GradientsMatchFiniteDifferencesInF64) {
  for (const OpCase& c : op_table()) {
    SCOPED_TRACE(describe(c));
    const std::vector<Values> values = draw(c, DType::f64);
    const Outcome exact = evaluate(c, values, DType::f64, kCpu);
    const std::vector<double> w = weights(i64(exact.y.size()));
    const auto scalar = [&](const std::vector<Values>& v) {
      const NoGrad no_grad;
      const Outcome o = evaluate(c, v, DType::f64, kCpu);
      double sum = 0;
      for (std::size_t i = 0; i < o.y.size(); ++i) {
        sum += w[i] * o.y[i];
      }
      return sum;
    };
    for (std::size_t k = 0; k < c.inputs.size(); ++k) {
      if (exact.grads[k].empty()) {
        continue;
      }
      // All elements of small inputs, a spread of large ones.
      const std::size_t n = values[k].v.size();
      const std::size_t step = n > 64 ? n / 37 : 1;
      std::vector<double> numeric;
      std::vector<double> analytic;
      for (std::size_t i = 0; i < n; i += step) {
        // Fourth order: the step may be large enough that rounding does not show.
        constexpr double kH = 1e-3;
        const auto at = [&](double h) {
          std::vector<Values> moved = values;
          moved[k].v[i] += h;
          return scalar(moved);
        };
        numeric.push_back((8 * (at(kH) - at(-kH)) - (at(2 * kH) - at(-2 * kH))) / (12 * kH));
        analytic.push_back(exact.grads[k][i]);
      }
      EXPECT_LE(distance(analytic, numeric), 1e-7) << "input " << k;
    }
  }
}

// Relative error of one rounding, times room for a handful of them.
double bound_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return 2e-6;
    case DType::f16: return 2e-3;
    case DType::bf16: return 1.6e-2;
    default: return 1e-12;
  }
}

void compare_with_f64(DType dtype, Device device, bool offset) {
  for (const OpCase& c : op_table()) {
    if (is_half(dtype) && !c.half) {
      continue;
    }
    SCOPED_TRACE(describe(c));
    // Products in bf16 are refused, not emulated, where the CPU has no arithmetic for them.
    static const std::set<std::string> kProducts = {"matmul", "linear", "conv2d", "conv3d",
                                                    "attention"};
    if (dtype == DType::bf16 && device.is_cpu() && kProducts.count(c.name) != 0 &&
        !kernels::cpu_bf16_usable()) {
      continue;
    }
    const std::vector<Values> values = draw(c, dtype);
    const Outcome exact = evaluate(c, values, DType::f64, kCpu, false, dtype);
    const Outcome narrow = evaluate(c, values, dtype, device, offset, dtype);
    const double bound = bound_of(dtype) * c.tolerance;
    EXPECT_LE(distance(narrow.y, exact.y), bound);
    ASSERT_EQ(narrow.grads.size(), exact.grads.size());
    for (std::size_t k = 0; k < narrow.grads.size(); ++k) {
      EXPECT_LE(distance(narrow.grads[k], exact.grads[k]), bound) << "gradient of input " << k;
    }
  }
}

TEST(OpTable, F32MatchesF64) { compare_with_f64(DType::f32, kCpu, false); }
TEST(OpTable, F16MatchesF64) { compare_with_f64(DType::f16, kCpu, false); }
TEST(OpTable, Bf16MatchesF64) { compare_with_f64(DType::bf16, kCpu, false); }
TEST(OpTable, UnalignedViewsGiveTheSame) { compare_with_f64(DType::f32, kCpu, true); }

class OnCuda : public testing::TestWithParam<DType> {
  void SetUp() override {
    if (!cuda::available()) {
      GTEST_SKIP() << cuda::status();
    }
  }
};
TEST_P(OnCuda, MatchesF64OnTheCpu) { compare_with_f64(GetParam(), kCuda, false); }
TEST_P(OnCuda, UnalignedViewsGiveTheSame) { compare_with_f64(GetParam(), kCuda, true); }
INSTANTIATE_TEST_SUITE_P(OpTable, OnCuda, testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST(OpTable, EveryOpDeclaresItsBytes) {
  for (const OpCase& c : op_table()) {
    if (c.zero_size || c.name == "reshape") {
      continue;
    }
    SCOPED_TRACE(describe(c));
    const ledger::Recorder recorder;
    const std::vector<Values> values = draw(c, DType::f32);
    (void)evaluate(c, values, DType::f32, kCpu);
    double forward = 0;
    double backward = 0;
    for (const auto& [key, totals] : recorder.table()) {
      if (key.op == c.name) {
        (key.phase == trace::Phase::kBackward ? backward : forward) += totals.bytes();
      }
    }
    EXPECT_GT(forward, 0);
    EXPECT_GT(forward + backward, forward * 0.5);
  }
}

TEST(OpTable, RunsOnMetaWithTheSameShapesAndMemory) {
  for (const OpCase& c : op_table()) {
    SCOPED_TRACE(describe(c));
    const auto run = [&](Device device) {
      std::vector<Tensor> inputs;
      for (const Input& in : c.inputs) {
        const DType d = in.boolean ? DType::boolean : in.index ? in.index_dtype : DType::f32;
        const Tensor x = Tensor::zeros(in.shape, d, device);
        inputs.push_back(in.index || in.boolean || !in.differentiable ? x : leaf(x));
      }
      for (const Tensor& x : inputs) {  // sinks exist before the step, as in training
        if (x.needs_grad()) {
          const Tensor g = Tensor::empty(x.shape(), DType::f32, device);
        }
      }
      StepScope scope(device);
      memory::reset_high_water(device);
      Shape shape;
      {
        const Tensor y = c.call(inputs);
        shape = y.shape();
        if (y.needs_grad()) {
          backward(y, {.seed = Tensor::zeros(y.shape(), y.dtype(), device)});
        }
      }
      scope.close();
      return std::pair(shape, memory::stats(device, Region::kStep).high_water);
    };
    const auto real = run(kCpu);
    const auto planned = run(meta_of(kCpu));
    EXPECT_EQ(real.first, planned.first);
    EXPECT_EQ(real.second, planned.second);
  }
}

TEST(OpTable, IntegersAreRefusedWithTheOpsName) {
  std::set<std::string> seen;
  for (const OpCase& c : op_table()) {
    if (c.inputs[0].boolean || !seen.insert(c.name).second) {
      continue;
    }
    static const std::set<std::string> kMovesAnything = {
        "reshape", "permute", "transpose", "slice", "pad", "expand", "concat", "sum", "where"};
    if (kMovesAnything.count(c.name) != 0 || c.name == "embedding") {
      continue;
    }
    SCOPED_TRACE(describe(c));
    std::vector<Tensor> inputs;
    for (const Input& in : c.inputs) {
      inputs.push_back(Tensor::zeros(in.shape, DType::i32, kCpu));
    }
    try {
      (void)c.call(inputs);
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_GT(std::string(e.what()).size(), 10U);
    }
  }
}

}  // namespace
}  // namespace penstock
