// Plan mathematics: affine costs, the bound, the predicted curve and its knees, tables.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/core/check.h"
#include "framework/measure/roofline.h"

namespace penstock::measure {
namespace {

using trace::Phase;

constexpr auto kWeights = std::size_t(MemoryClass::kWeights);
constexpr auto kActivations = std::size_t(MemoryClass::kActivations);
constexpr auto kOptimizer = std::size_t(MemoryClass::kOptimizer);

// A step with a matrix product, an activation and an optimizer.
ledger::Table plan(double batch) {
  ledger::Table table;
  auto& matmul = table[{"matmul", Phase::kForward}];
  matmul.read[kWeights] = 4e6;
  matmul.read[kActivations] = 4e3 * batch;
  matmul.written[kActivations] = 4e3 * batch;
  matmul.flops = 2e6 * batch;
  matmul.kernels = 1;
  auto& relu = table[{"relu", Phase::kForward}];
  relu.read[kActivations] = 1e4 * batch;
  relu.written[kActivations] = 1e4 * batch;
  relu.kernels = 1;
  auto& adam = table[{"adam", Phase::kOptimizer}];
  adam.read[kOptimizer] = 2e7;
  adam.written[kOptimizer] = 2e7;
  adam.kernels = 1;
  return table;
}

StepCost cost() {
  return step_cost(plan(8), 8, plan(64), 64);
}

TEST(Roofline, CostsAreAffineInTheBatch) {
  const StepCost c = cost();
  EXPECT_NEAR(c.bytes(0), 4.4e7, 1);
  EXPECT_NEAR(c.bytes(100), 4.4e7 + 2.8e6, 1);
  EXPECT_NEAR(c.flops(100), 2e8, 1);
  EXPECT_NEAR(c.kernels(1000), 3, 1e-9);
  EXPECT_NEAR(c.fixed_bytes_share(100), 4.4e7 / 4.68e7, 1e-9);
}

TEST(Roofline, CountsThatAreNotAffineStayNonNegative) {
  ledger::Table small = plan(8);
  ledger::Table large = plan(64);
  small[{"falling", Phase::kBackward}].flops = 100;
  large[{"falling", Phase::kBackward}].flops = 50;
  small[{"bending", Phase::kBackward}].flops = 8 * 8;
  large[{"bending", Phase::kBackward}].flops = 64 * 64;
  large[{"only large", Phase::kBackward}].flops = 64;
  for (const OpCost& op : step_cost(small, 8, large, 64).ops) {
    EXPECT_GE(op.flops.fixed, 0) << op.key.op;
    EXPECT_GE(op.flops.per_sample, 0) << op.key.op;
    EXPECT_GE(op.flops.at(64), large[op.key].flops * (1 - 1e-12)) << op.key.op;
  }
}

TEST(Roofline, EqualBatchesAreAnError) {
  EXPECT_THROW(step_cost(plan(8), 8, plan(8), 8), Error);
  EXPECT_THROW(step_cost(plan(0), 0, plan(8), 8), Error);
}

TEST(Roofline, BoundIsTheSumOfTheLongerOfBytesAndFlops) {
  const Roof roof{.bytes_per_second = 1e12, .flops_per_second = 1e13};
  // matmul: memory 4e6 + 8e3 B against 2e6 B FLOPs; at B = 1000 arithmetic rules.
  const double matmul = std::max((4e6 + 8e6) / 1e12, 2e9 / 1e13);
  const double expected = matmul + 2e7 / 1e12 + 4e7 / 1e12;
  EXPECT_NEAR(step_seconds(cost(), 1000, roof), expected, 1e-9 * expected);
  EXPECT_NEAR(bound(cost(), 1000, roof), 1000 / expected, 1);
  // Launches lengthen a step but not the bound.
  Roof launches = roof;
  launches.kernel_seconds = 1;
  EXPECT_NEAR(step_seconds(cost(), 1000, launches), 3, 1e-9);
  EXPECT_EQ(bound(cost(), 1000, launches), bound(cost(), 1000, roof));
  // Twice the traffic that was modelled.
  Roof scaled = roof;
  scaled.bytes_scale = 2;
  EXPECT_NEAR(step_seconds(cost(), 1000, scaled), 2e9 / 1e13 + 4e7 / 1e12 + 8e7 / 1e12, 1e-12);
  EXPECT_THROW(step_seconds(cost(), 8, Roof{}), Error);
}

// One op whose time is exactly a + b B.
StepCost hyperbola(double a, double b) {
  StepCost c;
  c.ops.push_back({.key = {"op", Phase::kForward}});
  c.ops[0].read[kActivations] = {a, b};
  return c;
}

TEST(Roofline, KneesOfAHyperbolaAreTheTextbookOnes) {
  // T = B / (B + 46): the curve behind "15, 40, 75 % at 8, 32, 128".
  const Prediction p = predict(hyperbola(46, 1), {.bytes_per_second = 1}, 4096);
  EXPECT_NEAR(p.half_batch, 46, 1e-6);
  // Within 5 % of the best feasible, 4096 / 4142: B >= 0.95 x that / (1 - that) x 46.
  const double share = 0.95 * 4096 / 4142;
  EXPECT_EQ(p.knee, i64(std::ceil(46 * share / (1 - share) / 8)) * 8);
  EXPECT_EQ(*p.gain_knee, 136);     // 46 / (2 B + 46) < 0.15 from 130.3 on
  EXPECT_EQ(*p.elastic_knee, 144);  // 46 / (B + 46) < 0.25 from 138 on, in steps of 8
  EXPECT_NEAR(p.points.front().share_of_best, 8.0 / 54 / (4096.0 / 4142), 1e-9);
  EXPECT_EQ(p.points.back().share_of_best, 1);
}

TEST(Roofline, MemoryThatEndsTheCurveLeavesTheKneesOpen) {
  const Prediction p = predict(hyperbola(1000, 1), {.bytes_per_second = 1}, 64);
  EXPECT_FALSE(p.gain_knee);
  EXPECT_FALSE(p.elastic_knee);
  EXPECT_EQ(p.knee, 64);
  EXPECT_NEAR(p.half_batch, 1000, 1e-6);
}

TEST(Roofline, FlatFromOneSampleOn) {
  const Prediction p = predict(hyperbola(0, 1), {.bytes_per_second = 1}, 512);
  EXPECT_EQ(p.knee, 1);
  EXPECT_EQ(*p.gain_knee, 1);
  EXPECT_EQ(p.half_batch, 0);
}

TEST(Roofline, TheGridStartsAtEightAndEndsWithWhatFits) {
  EXPECT_EQ(batch_grid(0), (std::vector<i64>{}));
  EXPECT_EQ(batch_grid(1), (std::vector<i64>{1}));
  EXPECT_EQ(batch_grid(5), (std::vector<i64>{5}));
  EXPECT_EQ(batch_grid(8), (std::vector<i64>{8}));
  EXPECT_EQ(batch_grid(100), (std::vector<i64>{8, 16, 32, 64, 96}));
  EXPECT_EQ(batch_grid(128), (std::vector<i64>{8, 16, 32, 64, 128}));
}

TEST(Roofline, TablesAddUp) {
  const Roof roof{.bytes_per_second = 1e12, .flops_per_second = 1e13};
  const TextTable categories = category_table(cost(), 100);
  EXPECT_EQ(categories.rows[0][0], "optimizer");
  EXPECT_EQ(categories.rows.back()[0], "total");
  EXPECT_EQ(categories.rows.size(), 4u);
  const TextTable ops = op_table(cost(), 100, roof, 2);
  ASSERT_EQ(ops.rows.size(), 4u);  // two, the rest, the total
  EXPECT_EQ(ops.rows[0][0], "adam");
  EXPECT_EQ(ops.rows[0].back(), "memory");
  EXPECT_EQ(ops.rows[1][0], "matmul");
  EXPECT_EQ(ops.rows[1].back(), "compute");
  EXPECT_EQ(ops.rows[2][0], "1 more");
  EXPECT_EQ(ops.rows[3][2], "3");
  EXPECT_EQ(prediction_table(predict(cost(), roof, 64)).rows.size(), 4u);
}

TEST(Table, AlignsColumnsAndMarksWhatIsMissing) {
  const TextTable table{.columns = {{"name", Align::kLeft}, {"value"}},
                        .rows = {{"a\xC3\xA9", "1"}, {"longer", ""}, {"b"}}};
  EXPECT_EQ(table.text(),
            "name    value\n"
            "a\xC3\xA9          1\n"
            "longer      -\n"
            "b           -\n");
}

TEST(Table, CellsOfMissingValuesAreEmpty) {
  EXPECT_EQ(percent_cell(std::nullopt), "");
  EXPECT_EQ(percent_cell(0.384), "38.4 %");
  EXPECT_EQ(rate_cell(2.91e12), "2.91 TB/s");
  EXPECT_EQ(rate_cell(27.5e9), "27.5 GB/s");
  EXPECT_EQ(flops_cell(412e12), "412 TFLOP/s");
  EXPECT_EQ(seconds_cell(std::nullopt), "");
}

}  // namespace
}  // namespace penstock::measure
