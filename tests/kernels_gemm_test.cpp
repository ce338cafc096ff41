#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/parallel.h"
#include "framework/kernels/blas.h"
#include "framework/kernels/naive.h"
#include "framework/kernels/onednn.h"
#include "tests/kernels_helpers.h"

namespace penstock::kernels {
namespace {

using kernel_test::distance;
using kernel_test::random_tensor;
using kernel_test::sum_bound;
using kernel_test::tensor;
using kernel_test::unit;
using kernel_test::values;

struct Problem {
  i64 m, n, k;
  bool trans_a = false, trans_b = false;
  i64 batch = 1;
  double alpha = 1, beta = 0;
  i64 extra = 0;         // added to every row stride
  bool shared_b = false;  // one b for all products
  Epilogue epilogue = Epilogue::kNone;
};

bool with_bias(Epilogue e) {
  return e == Epilogue::kBias || e == Epilogue::kBiasRelu || e == Epilogue::kBiasGelu;
}
bool with_aux(Epilogue e) {
  return e == Epilogue::kBiasGelu || e == Epilogue::kDRelu || e == Epilogue::kDGelu;
}

// The problem with operands of `dtype` and a result of `out`.
Gemm make(const Problem& p, DType dtype, DType out) {
  Gemm g;
  g.m = p.m;
  g.n = p.n;
  g.k = p.k;
  g.trans_a = p.trans_a;
  g.trans_b = p.trans_b;
  g.lda = (p.trans_a ? p.m : p.k) + p.extra;
  g.ldb = (p.trans_b ? p.k : p.n) + p.extra;
  g.ldc = p.n + p.extra;
  g.batch = p.batch;
  g.stride_a = (p.trans_a ? p.k : p.m) * g.lda;
  g.stride_b = p.shared_b ? 0 : (p.trans_b ? p.n : p.k) * g.ldb;
  g.stride_c = p.m * g.ldc;
  g.alpha = p.alpha;
  g.beta = p.beta;
  g.epilogue = p.epilogue;
  const i64 size_b = (p.trans_b ? p.n : p.k) * g.ldb;
  g.a = random_tensor({std::max<i64>(1, p.batch * g.stride_a)}, dtype, 1);
  g.b = random_tensor({std::max<i64>(1, p.shared_b ? size_b : p.batch * size_b)}, dtype, 2);
  g.c = random_tensor({p.batch * g.stride_c}, out, 3);
  if (with_bias(p.epilogue)) {
    g.bias = random_tensor({p.n}, dtype, 4);
  }
  if (with_aux(p.epilogue)) {
    g.aux = random_tensor({p.m, p.n}, dtype, 5);
  }
  return g;
}

// Loops over the definition in blas.h, in double.
std::vector<double> expected(const Problem& p) {
  const Gemm g = make(p, DType::f64, DType::f64);
  const auto a = g.a.values<double>();
  const auto b = g.b.values<double>();
  auto c = g.c.values<double>();
  const auto bias = g.bias.defined() ? g.bias.values<double>() : std::vector<double>();
  const auto aux = g.aux.defined() ? g.aux.values<double>() : std::vector<double>();
  for (i64 product = 0; product < p.batch; ++product) {
    for (i64 i = 0; i < p.m; ++i) {
      for (i64 j = 0; j < p.n; ++j) {
        double sum = 0;
        for (i64 q = 0; q < p.k; ++q) {
          sum += a[std::size_t(product * g.stride_a +
                               (p.trans_a ? q * g.lda + i : i * g.lda + q))] *
                 b[std::size_t(product * g.stride_b + (p.trans_b ? j * g.ldb + q : q * g.ldb + j))];
        }
        double& to = c[std::size_t(product * g.stride_c + i * g.ldc + j)];
        double y = p.alpha * sum + (p.beta != 0 ? p.beta * to : 0);
        y += with_bias(p.epilogue) ? bias[std::size_t(j)] : 0;
        const double x = aux.empty() ? 0 : aux[std::size_t(i * p.n + j)];
        switch (p.epilogue) {
          case Epilogue::kNone:
          case Epilogue::kBias: break;
          case Epilogue::kBiasRelu: y = std::max(y, 0.0); break;
          case Epilogue::kBiasGelu: y = math::gelu_tanh(y); break;
          case Epilogue::kDRelu: y = x > 0 ? y : 0; break;
          case Epilogue::kDGelu: y *= math::gelu_tanh_grad(x); break;
        }
        to = y;
      }
    }
  }
  return c;
}

std::string text(const Problem& p) {
  return format("{}x{}x{} {}{} batch {} alpha {} beta {} extra {} shared {} epilogue {}", p.m, p.n,
                p.k, p.trans_a ? "T" : "N", p.trans_b ? "T" : "N", p.batch, p.alpha, p.beta,
                p.extra, p.shared_b, int(p.epilogue));
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const double beta : {0.0, 1.0}) {
        all.push_back({.m = 17, .n = 33, .k = 65, .trans_a = ta, .trans_b = tb, .beta = beta});
        all.push_back({.m = 1, .n = 1, .k = 1, .trans_a = ta, .trans_b = tb, .beta = beta});
        all.push_back({.m = 1, .n = 5, .k = 7, .trans_a = ta, .trans_b = tb, .beta = beta});
        all.push_back({.m = 5, .n = 1, .k = 1, .trans_a = ta, .trans_b = tb, .beta = beta});
        all.push_back({.m = 13, .n = 7, .k = 19, .trans_a = ta, .trans_b = tb, .batch = 3,
                       .beta = beta, .extra = 5});
        all.push_back({.m = 8, .n = 10, .k = 16, .trans_a = ta, .trans_b = tb, .batch = 4,
                       .beta = beta, .shared_b = true});
      }
      all.push_back({.m = 9, .n = 4, .k = 0, .trans_a = ta, .trans_b = tb, .beta = 1});
      all.push_back({.m = 9, .n = 4, .k = 0, .trans_a = ta, .trans_b = tb});
      all.push_back({.m = 31, .n = 15, .k = 40, .trans_a = ta, .trans_b = tb, .alpha = 0.125,
                     .beta = 0.5});
    }
  }
  // Those that go to sgemm: long sums, wide results.
  all.push_back({.m = 24, .n = 20, .k = 1030, .trans_a = true, .beta = 1});
  all.push_back({.m = 520, .n = 1030, .k = 9, .trans_b = true});
  all.push_back({.m = 520, .n = 1030, .k = 9, .alpha = 2, .beta = 1, .extra = 3});
  for (const Epilogue e : {Epilogue::kBias, Epilogue::kBiasRelu, Epilogue::kBiasGelu,
                           Epilogue::kDRelu, Epilogue::kDGelu}) {
    all.push_back({.m = 19, .n = 37, .k = 23, .trans_b = true, .epilogue = e});
    all.push_back({.m = 19, .n = 37, .k = 23, .alpha = 0.5, .extra = 4, .epilogue = e});
    all.push_back({.m = 3, .n = 2, .k = 0, .epilogue = e});
  }
  all.push_back({.m = 6, .n = 18, .k = 11, .beta = 1, .epilogue = Epilogue::kBias});
  all.push_back({.m = 6, .n = 18, .k = 11, .beta = 1, .epilogue = Epilogue::kBiasRelu});
  return all;
}

// Absolute scale of the products matters where an epilogue cancels: bounds are norm-wise.
void compare(DType dtype, DType out, bool naive_only) {
  for (const Problem& p : problems()) {
    const Gemm g = make(p, dtype, out);
    if (naive_only) {
      naive::gemm(g);
    } else {
      gemm(g);
    }
    // The argument of GELU is kept in the operands' dtype, and the library may round it before.
    const double aux = p.epilogue == Epilogue::kBiasGelu ? 2 * unit(dtype) : 0;
    const double pass = p.epilogue != Epilogue::kNone ? 2 * unit(out) : 0;
    EXPECT_LE(distance(g.c.values<double>(), expected(p)), sum_bound(out, p.k) + aux + pass)
        << name_of(dtype) << " " << text(p);
  }
}

TEST(Gemm, PlainKernelMatchesItsDefinitionInF64) { compare(DType::f64, DType::f64, true); }
TEST(Gemm, PlainKernelMatchesItsDefinitionInF32) { compare(DType::f32, DType::f32, true); }
TEST(Gemm, PlainKernelMatchesItsDefinitionInF16) {
  compare(DType::f16, DType::f16, true);
  compare(DType::f16, DType::f32, true);
}
TEST(Gemm, F64IsExactToF64) { compare(DType::f64, DType::f64, false); }
TEST(Gemm, F32MatchesF64) { compare(DType::f32, DType::f32, false); }
TEST(Gemm, F16MatchesF64) { compare(DType::f16, DType::f16, false); }
TEST(Gemm, Bf16MatchesF64) {
  if (!cpu_bf16_usable()) {
    GTEST_SKIP() << "no bf16 on this CPU";
  }
  compare(DType::bf16, DType::bf16, false);
  compare(DType::bf16, DType::f32, false);
}

TEST(Gemm, OperandsBetweenOtherDataLeaveItAlone) {
  // Heads of a packed projection: row stride 3 H D, one product per head, result in [T, H, D].
  constexpr i64 kT = 21, kH = 3, kD = 16;
  const Tensor qkv = random_tensor({kT, 3, kH, kD}, DType::f32, 7);
  const Tensor y = Tensor::zeros({kT, 3, kH, kD}, DType::f32, kCpu);
  const Tensor p = random_tensor({kH, kT, kT}, DType::f32, 8);
  gemm({.a = p, .b = qkv.part(2 * kH * kD, {qkv.numel() - 2 * kH * kD}), .c = y.part(kH * kD, {y.numel() - kH * kD}),
        .m = kT, .n = kD, .k = kT, .ldb = 3 * kH * kD, .ldc = 3 * kH * kD, .batch = kH,
        .stride_a = kT * kT, .stride_b = kD, .stride_c = kD});
  const auto got = y.values<double>();
  const auto values_of_v = qkv.values<double>();
  const auto weights = p.values<double>();
  for (i64 t = 0; t < kT; ++t) {
    for (i64 part = 0; part < 3; ++part) {
      for (i64 h = 0; h < kH; ++h) {
        for (i64 d = 0; d < kD; ++d) {
          double sum = 0;
          for (i64 s = 0; part == 1 && s < kT; ++s) {
            sum += weights[std::size_t((h * kT + t) * kT + s)] *
                   values_of_v[std::size_t(((s * 3 + 2) * kH + h) * kD + d)];
          }
          EXPECT_NEAR(got[std::size_t(((t * 3 + part) * kH + h) * kD + d)], sum, 1e-5);
        }
      }
    }
  }
}

TEST(Gemm, BiasGradientIsTheColumnSumOfTheResult) {
  const Tensor a = random_tensor({20, 12}, DType::f32, 1);
  const Tensor b = random_tensor({12, 8}, DType::f32, 2);
  const Tensor aux = random_tensor({20, 8}, DType::f32, 3);
  const Tensor c = Tensor::empty({20, 8}, DType::f32, kCpu);
  const Tensor sums = Tensor::empty({8}, DType::f32, kCpu);
  gemm({.a = a, .b = b, .c = c, .m = 20, .n = 8, .k = 12, .epilogue = Epilogue::kDRelu, .aux = aux,
        .bias_grad = sums});
  const auto values_of_c = c.values<double>();
  const auto got = sums.values<double>();
  for (std::size_t j = 0; j < 8; ++j) {
    double sum = 0;
    for (std::size_t i = 0; i < 20; ++i) {
      sum += values_of_c[i * 8 + j];
    }
    EXPECT_NEAR(got[j], sum, 1e-5);
  }
}

TEST(Gemm, GeluKeepsItsArgument) {
  Problem p{.m = 12, .n = 20, .k = 30, .trans_b = true, .epilogue = Epilogue::kBiasGelu};
  const Gemm g = make(p, DType::f32, DType::f32);
  gemm(g);
  const auto argument = g.aux.values<double>();
  const auto y = g.c.values<double>();
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(y[i], math::gelu_tanh(argument[i]), 1e-6);
  }
}

TEST(Gemm, EmptyProductsTouchNothing) {
  for (const Problem& p : {Problem{.m = 0, .n = 4, .k = 3}, Problem{.m = 4, .n = 0, .k = 3},
                           Problem{.m = 4, .n = 4, .k = 3, .batch = 0}}) {
    const Tensor c = random_tensor({16}, DType::f32, 3);
    const auto before = c.values<float>();
    gemm({.a = random_tensor({12}, DType::f32, 1), .b = random_tensor({12}, DType::f32, 2), .c = c,
          .m = p.m, .n = p.n, .k = p.k, .batch = p.batch});
    EXPECT_EQ(c.values<float>(), before);
  }
}

TEST(Gemm, IsTheSameBitsEveryTime) {
  for (const int threads : {1, 2}) {
    const int before = parallel::threads();
    parallel::set_threads(threads);
    const Problem p{.m = 130, .n = 70, .k = 300, .trans_a = true};
    const Gemm once = make(p, DType::f32, DType::f32);
    gemm(once);
    const Gemm again = make(p, DType::f32, DType::f32);
    gemm(again);
    EXPECT_EQ(once.c.values<float>(), again.c.values<float>());
    parallel::set_threads(before);
  }
}

TEST(Gemm, MixedOperandsAreRefused) {
  const Tensor a = random_tensor({4}, DType::f32, 1);
  const Tensor b = random_tensor({4}, DType::f16, 2);
  EXPECT_THROW(gemm({.a = a, .b = b, .c = a, .m = 2, .n = 2, .k = 2}), Error);
  EXPECT_THROW(gemm({.a = a, .b = a, .c = b, .m = 2, .n = 2, .k = 2}), Error);
}

TEST(Gemm, LedgerCountsTwoOperationsAMultiplyAdd) {
  ledger::Recorder recorder;
  gemm({.a = random_tensor({6, 4}, DType::f32, 1), .b = random_tensor({4, 5}, DType::f32, 2),
        .c = Tensor::empty({6, 5}, DType::f32, kCpu), .m = 6, .n = 5, .k = 4});
  EXPECT_EQ(recorder.sum().flops, 2.0 * 6 * 5 * 4);
  EXPECT_EQ(recorder.sum().bytes(), 4.0 * (6 * 4 + 4 * 5 + 6 * 5));
}

}  // namespace
}  // namespace penstock::kernels
