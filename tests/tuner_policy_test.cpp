// What the knee means for batch, accumulation, learning rate and averages.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "framework/tuner/policy.h"
#include "tests/tuner_sim/random.h"

namespace penstock::tuner {
namespace {

PolicyOptions throughput(i64 knee, i64 configured) {
  PolicyOptions options;
  options.knee = knee;
  options.configured_batch = configured;
  options.total_samples = options.remaining_samples = 10'000'000;
  return options;
}

TEST(Throughput, TakesTheKneeAndScalesTheRateOfSgdLinearly) {
  const PolicyDecision decision = decide_batch(throughput(256, 64));
  EXPECT_EQ(decision.micro_batch, 256);
  EXPECT_EQ(decision.accumulate, 1);
  EXPECT_EQ(decision.effective_batch, 256);
  EXPECT_DOUBLE_EQ(decision.kappa, 4);
  EXPECT_DOUBLE_EQ(decision.learning_rate_factor, 4);
  EXPECT_DOUBLE_EQ(decision.beta_power, 1);
  EXPECT_TRUE(decision.limits.empty());
  EXPECT_NE(decision.reason.find("64 -> 256"), std::string::npos);
}

TEST(Throughput, ScalesAdamByTheRootAndItsBetasByThePower) {
  PolicyOptions options = throughput(256, 64);
  options.rule = LearningRateRule::kSquareRoot;
  const PolicyDecision decision = decide_batch(options);
  EXPECT_DOUBLE_EQ(decision.learning_rate_factor, 2);
  EXPECT_DOUBLE_EQ(decision.beta_power, 4);  // the same half-life in samples
  options.rule = LearningRateRule::kNone;
  EXPECT_DOUBLE_EQ(decide_batch(options).learning_rate_factor, 1);
}

TEST(Throughput, ASmallerBatchScalesDown) {
  const PolicyDecision decision = decide_batch(throughput(32, 128));
  EXPECT_EQ(decision.effective_batch, 32);
  EXPECT_DOUBLE_EQ(decision.learning_rate_factor, 0.25);
}

TEST(Throughput, NamesEveryLimitThatBinds) {
  PolicyOptions options = throughput(4096, 64);
  EXPECT_EQ(decide_batch(options).effective_batch, 1024);  // 16 x 64
  EXPECT_EQ(decide_batch(options).limits, std::vector<std::string>{"auto_batch.max_scale"});
  options.auto_max = 500;
  EXPECT_EQ(decide_batch(options).effective_batch, 496);
  EXPECT_EQ(decide_batch(options).limits.size(), 2U);
  options.largest_fitting = 100;
  EXPECT_EQ(decide_batch(options).effective_batch, 96);
  options.dataset_size = 50;
  EXPECT_EQ(decide_batch(options).effective_batch, 48);
}

TEST(Throughput, AThousandStepsRemainUnlessTheConfiguredBatchLeavesFewer) {
  PolicyOptions options = throughput(512, 64);
  options.remaining_samples = options.total_samples = 200'000;
  EXPECT_EQ(decide_batch(options).effective_batch, 200);
  options.remaining_samples = 20'000;  // 64 leaves 312 already
  const PolicyDecision decision = decide_batch(options);
  EXPECT_EQ(decision.effective_batch, 64);
  EXPECT_EQ(decision.limits, std::vector<std::string>{"at least 1000 optimizer steps"});
  EXPECT_DOUBLE_EQ(decision.learning_rate_factor, 1);
  EXPECT_EQ(decision.ramp_samples, 0);
}

TEST(Throughput, RampsOnlyWhereNoWarmUpCoversTheChange) {
  PolicyOptions options = throughput(256, 64);
  EXPECT_EQ(decide_batch(options).ramp_samples, 200'000);  // 2 % of the samples
  options.warmup_samples = 500'000;
  EXPECT_EQ(decide_batch(options).ramp_samples, 0);  // before step 0, under the warm-up
  options.before_first_step = false;
  EXPECT_EQ(decide_batch(options).ramp_samples, 500'000);
  options.current_batch = 256;  // nothing changes any more
  EXPECT_EQ(decide_batch(options).ramp_samples, 0);
}

TEST(Hold, KeepsTheEffectiveBatchAndTheRateForEveryPair) {
  tuner_sim::Random draw(7);
  for (int i = 0; i < 20000; ++i) {
    PolicyOptions options;
    options.policy = BatchPolicy::kHold;
    options.configured_batch = draw.integer(1, 3000);
    options.knee = draw.integer(1, 4000);
    options.largest_fitting = draw.chance(0.5) ? draw.integer(2, 3000) : 0;
    options.batch_norm = draw.chance(0.5);
    const PolicyDecision decision = decide_batch(options);
    EXPECT_EQ(decision.effective_batch, options.configured_batch);
    EXPECT_EQ(std::accumulate(decision.micro_batches.begin(), decision.micro_batches.end(), i64{0}),
              options.configured_batch);
    EXPECT_EQ(decision.accumulate, i64(decision.micro_batches.size()));
    EXPECT_EQ(decision.learning_rate_factor, 1);
    EXPECT_EQ(decision.beta_power, 1);
    EXPECT_EQ(decision.ramp_samples, 0);
    for (const i64 micro : decision.micro_batches) {
      EXPECT_GE(micro, 1);
      EXPECT_LE(micro, std::min(options.knee, options.configured_batch) + 1);
      if (options.largest_fitting > 0) {
        EXPECT_LE(micro, options.largest_fitting);
      }
      // Batch norm takes no single sample unless nothing else is possible.
      if (options.batch_norm && options.knee > 2 && options.configured_batch > 1 &&
          options.largest_fitting != 1 && options.largest_fitting != 2) {
        EXPECT_GT(micro, 1) << options.configured_batch << " knee " << options.knee << " fits "
                            << options.largest_fitting;
      }
    }
  }
}

TEST(Hold, PrefersADivisorAndKeepsTheTimeConstantOfBatchNorm) {
  PolicyOptions options;
  options.policy = BatchPolicy::kHold;
  options.configured_batch = 256;
  options.knee = 96;
  options.batch_norm = true;
  PolicyDecision decision = decide_batch(options);
  EXPECT_EQ(decision.micro_batch, 64);
  EXPECT_EQ(decision.accumulate, 4);
  // Four updates with the new momentum forget as much as one with the old.
  EXPECT_NEAR(std::pow(1 - decision.bn_momentum, 4), 0.9, 1e-12);
  ASSERT_FALSE(decision.warnings.empty());
  EXPECT_NE(decision.warnings.front().find("batch norm"), std::string::npos);
  options.configured_batch = 254;  // 2 x 127: no divisor near 96
  decision = decide_batch(options);
  EXPECT_EQ(decision.micro_batches, (std::vector<i64>{96, 96, 62}));
}

TEST(Policy, RefusesWhatCannotBeABatch) {
  EXPECT_THROW(decide_batch(throughput(0, 64)), ConfigError);
  EXPECT_THROW(decide_batch(throughput(64, 0)), ConfigError);
  PolicyOptions options = throughput(64, 64);
  options.max_scale = 0;
  EXPECT_THROW(decide_batch(options), ConfigError);
}

}  // namespace
}  // namespace penstock::tuner
