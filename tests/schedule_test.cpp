// Learning rates over sample positions.
#include "framework/optim/schedule.h"

#include <gtest/gtest.h>

namespace penstock::optim {
namespace {

using Kind = Schedule::Kind;

constexpr Kind kAll[] = {Kind::kConstant, Kind::kCosine, Kind::kLinear, Kind::kStep, Kind::kWsd};

Schedule schedule(Kind kind, i64 warmup = 0) {
  return {.kind = kind,
          .base = 0.4,
          .final = 0.04,
          .warmup = warmup,
          .total = 1000,
          .decay = 200,
          .factor = 0.5,
          .milestones = {300, 600}};
}

TEST(Schedule, ValuesAtKnownPositions) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(Kind::kConstant), 999), 0.4);
  const Schedule cosine = schedule(Kind::kCosine);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 0), 0.4);
  EXPECT_NEAR(learning_rate(cosine, 250), 0.04 + 0.18 * (1 + 0.7071067811865476), 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 500), 0.22, 1e-12);
  EXPECT_NEAR(learning_rate(cosine, 1000), 0.04, 1e-12);
  EXPECT_NEAR(learning_rate(schedule(Kind::kLinear), 250), 0.31, 1e-12);
  const Schedule step = schedule(Kind::kStep);
  EXPECT_DOUBLE_EQ(learning_rate(step, 299), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(step, 300), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(step, 600), 0.1);
  const Schedule wsd = schedule(Kind::kWsd);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, 800), 0.4);
  EXPECT_NEAR(learning_rate(wsd, 900), 0.22, 1e-12);
  EXPECT_NEAR(learning_rate(wsd, 1000), 0.04, 1e-12);
}

TEST(Schedule, WarmUpRisesInSamplesAndNeverStandsStill) {
  for (const Kind kind : kAll) {
    const Schedule s = schedule(kind, 100);
    EXPECT_DOUBLE_EQ(learning_rate(s, 0, 25), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(s, 50, 25), 0.3);
    EXPECT_DOUBLE_EQ(learning_rate(s, 75, 25), 0.4);
    EXPECT_DOUBLE_EQ(learning_rate(s, 100, 25), 0.4);
    for (const i64 batch : {1, 7, 64, 500}) {
      EXPECT_GT(learning_rate(s, 0, batch), 0);
    }
  }
}

// A resumed run, or one with another batch, meets the same rates at the same positions: behind the
// warm-up the batch has no part in it.
TEST(Schedule, DependsOnThePositionOnly) {
  for (const Kind kind : kAll) {
    const Schedule s = schedule(kind, 100);
    for (const i64 position : {100, 101, 440, 450, 999}) {
      EXPECT_EQ(learning_rate(s, position, 1), learning_rate(s, position, 512));
    }
  }
}

TEST(Schedule, StaysBetweenItsEndsAndFallsWithoutJumps) {
  for (const Kind kind : {Kind::kCosine, Kind::kLinear, Kind::kWsd}) {
    for (const i64 warmup : {0, 100, 900}) {
      const Schedule s = schedule(kind, warmup);
      double before = learning_rate(s, warmup);
      EXPECT_DOUBLE_EQ(before, 0.4);
      for (i64 position = warmup + 1; position <= 1000; ++position) {
        const double rate = learning_rate(s, position);
        EXPECT_LE(rate, before);
        EXPECT_GE(rate, 0.04 - 1e-12);
        EXPECT_LE(before - rate, 0.36 * 1.6 / 99) << int(kind) << " at " << position;
        before = rate;
      }
    }
  }
}

TEST(Schedule, BeyondItsEndTheLastRateStays) {
  for (const Kind kind : kAll) {
    const Schedule s = schedule(kind, 100);
    EXPECT_EQ(learning_rate(s, 5000), learning_rate(s, 1000));
  }
}

TEST(Schedule, DegenerateLengthsGiveFiniteRates) {
  for (const Kind kind : kAll) {
    for (const i64 total : {0, 1, 50}) {
      for (const i64 warmup : {0, 50}) {
        Schedule s = schedule(kind, warmup);
        s.total = total;
        for (const i64 position : {0, 1, 49, 50, 51}) {
          const double rate = learning_rate(s, position, 1);
          EXPECT_GE(rate, 0) << int(kind);
          EXPECT_LE(rate, 0.4) << int(kind);
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::optim
