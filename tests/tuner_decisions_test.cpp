// The decision log, robust statistics and the fit of step time against batch.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/tuner/curve.h"
#include "framework/tuner/decisions.h"
#include "framework/tuner/statistics.h"
#include "tests/tuner_sim/random.h"

namespace penstock::tuner {
namespace {

using tuner_sim::Random;

TEST(Record, ReadsBackWhatItWrote) {
  Record record("a \"quoted\" event");
  record.set("number", 0.1).set("whole", 7).set("flag", true).set("text", "line\nbreak\t\x01 é");
  record.set("list", std::vector<double>{1, -2.5, 1e300});
  record.set("nothing", std::numeric_limits<double>::infinity());
  const Record back = Record::parse(record.to_line(), "log", 3);
  EXPECT_EQ(back.to_line(), record.to_line());
  EXPECT_EQ(back.number("number"), 0.1);
  EXPECT_EQ(back.integer("whole"), 7);
  EXPECT_TRUE(back.flag("flag"));
  EXPECT_EQ(back.text("text"), "line\nbreak\t\x01 é");
  EXPECT_EQ(back.list("list").size(), 3U);
  EXPECT_TRUE(std::isnan(back.number("nothing")));
  EXPECT_EQ(back.origin(), "log:3");
}

TEST(Record, EveryDoubleSurvivesTheLog) {
  Random draw(5);
  for (int i = 0; i < 10000; ++i) {
    const double value = std::ldexp(draw.uniform(-1, 1), draw.integer(-300, 300));
    const Record back = Record::parse(Record("e").set("x", value).to_line(), "log", 1);
    ASSERT_EQ(back.number("x"), value);
    const double six = rounded(value);
    EXPECT_NEAR(six, value, 1e-5 * std::abs(value));
    EXPECT_EQ(rounded(six), six);
  }
}

TEST(Record, DamagedLinesNameFileAndLine) {
  for (const char* line :
       {"", "{", "{}", "[]", "{\"event\":1}", "{\"event\":\"a\"", "{\"event\":\"a\"}x",
        "{\"event\":\"a\",\"b\":}", "{\"event\":\"a\",\"b\":1,\"b\":2}",
        "{\"event\":\"a\",\"b\":{}}", "{\"event\":\"a\",\"b\":1e999}",
        "{\"event\":\"a\",\"b\":nan}", "{\"event\":\"a\",\"b\":\"x}",
        "{\"event\":\"a\",\"b\":\"\\ud800\"}", "{\"event\":\"a\",\"b\":[1,}"}) {
    try {
      Record::parse(line, "decisions.jsonl", 12);
      ADD_FAILURE() << "accepted: " << line;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find("decisions.jsonl:12"), std::string::npos) << line;
    }
  }
  const Record record = Record::parse("{\"event\":\"a\",\"b\":1.5}", "log", 2);
  EXPECT_THROW(record.integer("b"), DataError);
  EXPECT_THROW(record.text("b"), DataError);
  EXPECT_THROW(record.number("c"), DataError);
}

TEST(Log, ALineCutShortByAKilledRunIsLeftOut) {
  const std::string good = Record("a").set("x", 1).to_line() + "\n";
  EXPECT_EQ(parse_log(good + "\n" + good + "{\"event\":\"b\",\"x", "log").size(), 2U);
  EXPECT_THROW(parse_log("{\"event\":\"b\",\"x\n" + good, "log"), DataError);
}

TEST(Statistics, MedianAndItsErrorIgnoreAnOutlier) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({1, 2, 3, 4, 1000}), 3);
  EXPECT_EQ(median_deviation({1, 2, 3, 4, 1000}, 3), 1);
  EXPECT_THROW(median({}), Error);
  // The error of a median of normal values, against its spread over many samples.
  Random draw(3);
  double square = 0;
  double claimed = 0;
  constexpr int kTrials = 4000;
  for (int i = 0; i < kTrials; ++i) {
    std::vector<double> values;
    for (int n = 0; n < 25; ++n) {
      values.push_back(draw.normal());
    }
    const double centre = median(values);
    square += centre * centre;
    claimed += median_error(median_deviation(values, centre), values.size());
  }
  EXPECT_NEAR(claimed / kTrials, std::sqrt(square / kTrials), 0.02);
}

TEST(Statistics, AnAnswerIsGivenOnlyBeyondTheError) {
  EXPECT_EQ(at_least(1.0, 0.01, 0.95), Answer::kYes);
  EXPECT_EQ(at_least(0.9, 0.01, 0.95), Answer::kNo);
  EXPECT_EQ(at_least(0.96, 0.01, 0.95), Answer::kUnknown);
}

std::vector<CurvePoint> measured(const StepFit& truth, const std::vector<double>& batches,
                                 double noise, Random& draw) {
  std::vector<CurvePoint> points;
  for (const double batch : batches) {
    points.push_back({batch, truth.seconds(batch) * draw.lognormal(noise), noise});
  }
  return points;
}

TEST(StepFit, FindsTheHalfBatchOfAKnownCurve) {
  Random draw(1);
  for (int i = 0; i < 500; ++i) {
    StepFit truth;
    truth.b = draw.log_uniform(1e-6, 1e-2);
    truth.a = truth.b * draw.log_uniform(4, 200);
    const StepFit fit = fit_step_time(measured(truth, {8, 16, 32, 64, 128, 256, 512}, 0.003, draw));
    EXPECT_NEAR(fit.half_batch() / truth.half_batch(), 1, 0.15) << i;
    EXPECT_NEAR(fit.limit() / truth.limit(), 1, 0.02) << i;
    EXPECT_NEAR(fit.elasticity(truth.half_batch()), 0.5, 0.05) << i;
  }
}

TEST(StepFit, TheClassicCurveGives46) {
  // 15, 40 and 75 % of the limit at 8, 32 and 128 samples.
  const StepFit fit =
      fit_step_time({{8, 8 / 0.15, 0.01}, {32, 32 / 0.40, 0.01}, {128, 128 / 0.75, 0.01}});
  EXPECT_NEAR(fit.half_batch(), 46, 3);
}

TEST(StepFit, SeesTheFloorOfLaunches) {
  Random draw(2);
  StepFit truth{.c = 0.010, .a = 0.001, .b = 0.0001};
  const StepFit fit = fit_step_time(measured(truth, {8, 16, 32, 64, 128, 256, 512}, 0.003, draw));
  EXPECT_NEAR(fit.c, 0.010, 0.0005);
  EXPECT_NEAR(fit.limit(), 1e4, 300);
  EXPECT_EQ(fit.elasticity(16), 1);  // under the floor the whole step is fixed cost
}

TEST(StepFit, ALateStepDoesNotBendTheCurve) {
  StepFit truth{.a = 0.005, .b = 0.0001};
  Random draw(3);
  std::vector<CurvePoint> points = measured(truth, {8, 16, 32, 64, 128, 256, 512}, 0.003, draw);
  points[3].seconds *= 1.6;
  const StepFit fit = fit_step_time(points);
  EXPECT_NEAR(fit.limit(), 1e4, 400);
}

TEST(StepFit, SuperlinearOnlyWhereItPredictsBetter) {
  Random draw(4);
  const std::vector<double> batches = {8, 16, 32, 64, 128, 256, 512};
  StepFit straight{.a = 0.005, .b = 0.0001};
  StepFit bent{.a = 0.005, .b = 0.0001, .q = 4e-7};
  int mistaken = 0;
  for (int i = 0; i < 200; ++i) {
    mistaken += fit_step_time(measured(straight, batches, 0.003, draw)).q > 0 ? 1 : 0;
    EXPECT_GT(fit_step_time(measured(bent, batches, 0.003, draw)).q, 2e-7);
  }
  EXPECT_LE(mistaken, 10);
}

TEST(Unimodal, PoolsContradictionsAndKeepsThePeak) {
  const std::vector<double> rates = unimodal_rates({{1, 1 / 10.0, 0.01},
                                                    {2, 2 / 30.0, 0.01},
                                                    {4, 4 / 28.0, 0.01},
                                                    {8, 8 / 40.0, 0.01},
                                                    {16, 16 / 20.0, 0.01}});
  EXPECT_NEAR(rates[1], rates[2], 1e-9);
  EXPECT_NEAR(rates[1], 29, 0.2);
  EXPECT_NEAR(rates[3], 40, 1e-9);
  EXPECT_NEAR(rates[4], 20, 1e-9);
}

}  // namespace
}  // namespace penstock::tuner
