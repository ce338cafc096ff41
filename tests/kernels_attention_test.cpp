#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/core/memory.h"
#include "framework/kernels/attention.h"
#include "framework/kernels/onednn.h"
#include "tests/kernels_helpers.h"

namespace penstock::kernels {
namespace {

using kernel_test::distance;
using kernel_test::random_tensor;
using kernel_test::unit;

struct Case {
  i64 batch, time, heads, width;
  bool causal = false;
  std::vector<std::int32_t> lengths;
};

std::vector<Case> cases() {
  return {
      {2, 5, 3, 4},
      {2, 5, 3, 4, true},
      {1, 1, 1, 1, true},
      {3, 7, 2, 8, false, {7, 3, 0}},
      {3, 7, 2, 8, true, {9, 3, -2}},
      {1, 130, 2, 16, true},          // two blocks of queries, the last one short
      {1, 300, 3, 8, true, {211}},    // three
      {2, 257, 2, 8, false, {257, 1}},
      {1, 640, 9, 4, true},  // more than one group of heads
  };
}

struct Results {
  std::vector<double> y, saved, dqkv;
};

Attention problem(const Case& c) {
  return {.batch = c.batch,
          .time = c.time,
          .heads = c.heads,
          .width = c.width,
          .causal = c.causal,
          .scale = 1 / std::sqrt(double(c.width))};
}

Shape packed(const Case& c) { return {c.batch, c.time, 3, c.heads, c.width}; }
Shape single(const Case& c) { return {c.batch, c.time, c.heads, c.width}; }

// Straight from the definition, one query at a time.
Results by_definition(const Case& c) {
  const Attention a = problem(c);
  const auto qkv = random_tensor(packed(c), DType::f64, 1).values<double>();
  const auto dy = random_tensor(single(c), DType::f64, 2).values<double>();
  Results r;
  r.y.assign(dy.size(), 0);
  r.dqkv.assign(qkv.size(), 0);
  r.saved.assign(std::size_t(c.batch * c.heads * c.time), -std::numeric_limits<double>::infinity());
  const auto at = [&](i64 b, i64 t, i64 part, i64 h, i64 d) {
    return std::size_t((((b * c.time + t) * 3 + part) * c.heads + h) * c.width + d);
  };
  for (i64 b = 0; b < c.batch; ++b) {
    for (i64 h = 0; h < c.heads; ++h) {
      for (i64 t = 0; t < c.time; ++t) {
        i64 keys = c.causal ? t + 1 : c.time;
        if (!c.lengths.empty()) {
          keys = std::clamp<i64>(c.lengths[std::size_t(b)], 0, keys);
        }
        if (keys == 0) {
          continue;
        }
        std::vector<double> p(static_cast<std::size_t>(keys));
        double most = -std::numeric_limits<double>::infinity();
        for (i64 s = 0; s < keys; ++s) {
          double sum = 0;
          for (i64 d = 0; d < c.width; ++d) {
            sum += qkv[at(b, t, 0, h, d)] * qkv[at(b, s, 1, h, d)];
          }
          p[std::size_t(s)] = sum * a.scale;
          most = std::max(most, p[std::size_t(s)]);
        }
        double total = 0;
        for (double& v : p) {
          v = std::exp(v - most);
          total += v;
        }
        r.saved[std::size_t((b * c.heads + h) * c.time + t)] = most + std::log(total);
        const auto out = std::size_t(((b * c.time + t) * c.heads + h) * c.width);
        std::vector<double> dp(p.size());
        double mean = 0;
        for (i64 s = 0; s < keys; ++s) {
          double& v = p[std::size_t(s)];
          v /= total;
          for (i64 d = 0; d < c.width; ++d) {
            r.y[out + std::size_t(d)] += v * qkv[at(b, s, 2, h, d)];
            dp[std::size_t(s)] += dy[out + std::size_t(d)] * qkv[at(b, s, 2, h, d)];
            r.dqkv[at(b, s, 2, h, d)] += v * dy[out + std::size_t(d)];
          }
          mean += v * dp[std::size_t(s)];
        }
        for (i64 s = 0; s < keys; ++s) {
          const double ds = p[std::size_t(s)] * (dp[std::size_t(s)] - mean) * a.scale;
          for (i64 d = 0; d < c.width; ++d) {
            r.dqkv[at(b, t, 0, h, d)] += ds * qkv[at(b, s, 1, h, d)];
            r.dqkv[at(b, s, 1, h, d)] += ds * qkv[at(b, t, 0, h, d)];
          }
        }
      }
    }
  }
  return r;
}

// Scores, probabilities and their gradients are each rounded once on the way: `steps` roundings of
// the dtype, norm-wise.
void compare(DType dtype, double steps) {
  for (const Case& c : cases()) {
    const Results expected = by_definition(c);
    const Attention a = problem(c);
    const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
    const Tensor qkv = random_tensor(packed(c), dtype, 1);
    const Tensor dy = random_tensor(single(c), dtype, 2);
    const Tensor y = random_tensor(single(c), dtype, 3);
    const Tensor dqkv = random_tensor(packed(c), dtype, 4);
    const Tensor saved = Tensor::empty({c.batch, c.heads, c.time}, wide, kCpu);
    const Tensor lengths =
        c.lengths.empty() ? Tensor() : Tensor::from(c.lengths, {c.batch}, kCpu);
    attention_forward(a, qkv, lengths, y, saved);
    attention_backward(a, qkv, lengths, y, saved, dy, dqkv);
    const std::string what =
        format("{} B {} T {} H {} D {} causal {}", name_of(dtype), c.batch, c.time, c.heads,
               c.width, c.causal);
    EXPECT_LE(distance(y.values<double>(), expected.y), steps * unit(dtype)) << what;
    EXPECT_LE(distance(dqkv.values<double>(), expected.dqkv), 2 * steps * unit(dtype)) << what;
    const auto got = saved.values<double>();
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isinf(expected.saved[i])) {
        ASSERT_EQ(got[i], expected.saved[i]) << what;
      } else {
        ASSERT_NEAR(got[i], expected.saved[i], 8 * unit(wide) * (1 + std::abs(got[i]))) << what;
      }
    }
  }
}

TEST(Attention, F64MatchesTheDefinition) { compare(DType::f64, 16); }
TEST(Attention, F32MatchesTheDefinition) { compare(DType::f32, 8); }
TEST(Attention, F16MatchesTheDefinition) { compare(DType::f16, 2); }
TEST(Attention, Bf16MatchesTheDefinition) {
  if (!cpu_bf16_usable()) {
    GTEST_SKIP() << "no bf16 on this CPU";
  }
  compare(DType::bf16, 2);
}

TEST(Attention, FullyMaskedSamplesAreZeroWithZeroGradient) {
  const Case c{2, 40, 2, 8, false, {0, 40}};
  const Attention a = problem(c);
  const Tensor qkv = random_tensor(packed(c), DType::f32, 1);
  const Tensor dy = random_tensor(single(c), DType::f32, 2);
  const Tensor y = random_tensor(single(c), DType::f32, 3);
  const Tensor dqkv = random_tensor(packed(c), DType::f32, 4);
  const Tensor saved = Tensor::empty({c.batch, c.heads, c.time}, DType::f32, kCpu);
  const Tensor lengths = Tensor::from(c.lengths, {c.batch}, kCpu);
  attention_forward(a, qkv, lengths, y, saved);
  attention_backward(a, qkv, lengths, y, saved, dy, dqkv);
  for (const Tensor& t : {y, dqkv}) {
    const auto v = t.values<float>();
    EXPECT_TRUE(std::all_of(v.begin(), v.begin() + std::ptrdiff_t(v.size() / 2),
                            [](float e) { return e == 0; }));
    EXPECT_TRUE(std::any_of(v.begin() + std::ptrdiff_t(v.size() / 2), v.end(),
                            [](float e) { return e != 0; }));
  }
}

TEST(Attention, ScratchIsBoundedByBlocksNotByTheSquareOfTime) {
  // On meta nothing is computed: the region's high-water mark is what a real call would hold.
  const auto scratch = [](i64 time) {
    const Device device = meta_of(kCpu);
    const Attention a{.batch = 4, .time = time, .heads = 8, .width = 64, .causal = true,
                      .scale = 0.125};
    const Tensor qkv = Tensor::empty({4, time, 3, 8, 64}, DType::f32, device);
    const Tensor y = Tensor::empty({4, time, 8, 64}, DType::f32, device);
    const Tensor saved = Tensor::empty({4, 8, time}, DType::f32, device);
    StepScope step(device);
    memory::reset_high_water(device);
    attention_forward(a, qkv, Tensor(), y, saved);
    const i64 forward = memory::stats(device, Region::kStep).high_water;
    attention_backward(a, qkv, Tensor(), y, saved, y, qkv);
    const i64 both = memory::stats(device, Region::kStep).high_water;
    step.close();
    return std::pair(forward, both);
  };
  EXPECT_LE(scratch(512).first, i64(3) << 20);
  EXPECT_LE(scratch(512).second, i64(6) << 20);
  // Twice the time: at most twice the scratch.
  EXPECT_LE(scratch(8192).second, 2 * scratch(4096).second + (i64(1) << 20));
}

TEST(Attention, EmptyAndMismatchedOperands) {
  const Case none{0, 5, 2, 4};
  const Attention a = problem(none);
  const Tensor qkv = Tensor::empty(packed(none), DType::f32, kCpu);
  const Tensor y = Tensor::empty(single(none), DType::f32, kCpu);
  const Tensor saved = Tensor::empty({0, 2, 5}, DType::f32, kCpu);
  attention_forward(a, qkv, Tensor(), y, saved);
  attention_backward(a, qkv, Tensor(), y, saved, y, qkv);
  Attention other = a;
  other.batch = 1;
  EXPECT_THROW(attention_forward(other, qkv, Tensor(), y, saved), Error);
  const Tensor lengths = Tensor::from(std::vector<float>{1}, {1}, kCpu);
  EXPECT_THROW(attention_forward(a, qkv, lengths, y, saved), Error);
}

}  // namespace
}  // namespace penstock::kernels
