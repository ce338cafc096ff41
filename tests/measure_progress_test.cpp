// The progress line on a clock of its own: what it says, how often, and whether the estimate of the
// whole run's end holds.
#include "framework/measure/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "framework/core/format.h"
#include "framework/core/log.h"

namespace penstock::measure {
namespace {

Progress usual() {
  return {.epoch = 3,
          .epochs = 20,
          .epoch_share = 0.413,
          .share = 0.12,
          .loss = 0.412,
          .samples_per_second = 9800,
          .dram = Bandwidth{.bytes_per_second = 2.9e12,
                            .share_of_theoretical = 0.6,
                            .share_of_achievable = 0.68,
                            .source = Source::kGpm},
          .data_wait = 0.012,
          .memory_used = 31.2 * 1024 * 1024 * 1024,
          .memory_total = 139.0 * 1024 * 1024 * 1024,
          .batch = 208,
          .workers = 6,
          .depth = 3,
          .limit = "memory",
          .seconds_left = 760,
          .ends = "18:05"};
}

TEST(ProgressText, IsTheLineThatIsSpecified) {
  EXPECT_EQ(progress_text(usual()),
            "epoch 3/20 41% | loss 0.412 | 9.8k samples/s | DRAM 2.9 TB/s 68% gpm | wait 1.2% | "
            "31.2/139 GiB | batch 208x1 W6 D3 | memory | ETA 12:40 (ends 18:05)");
}

TEST(ProgressText, WhatWasNotMeasuredIsLeftOut) {
  EXPECT_EQ(progress_text({}), "0%");
  Progress p = usual();
  p.dram->source = Source::kNone;
  p.data_wait.reset();
  p.loss.reset();
  p.memory_total.reset();
  p.limit.clear();
  EXPECT_EQ(progress_text(p),
            "epoch 3/20 41% | 9.8k samples/s | 31.2 GiB | batch 208x1 W6 D3 | ETA 12:40 (ends "
            "18:05)");
  // The other share has another name.
  p = usual();
  p.dram->share_of_achievable.reset();
  EXPECT_NE(progress_text(p).find("2.9 TB/s 60% of peak gpm"), std::string::npos);
}

TEST(ProgressText, FitsAnyWidthAndDropsTheLeastImportantFirst) {
  for (int width = 1; width < 200; ++width) {
    EXPECT_LE(progress_text(usual(), {.width = width}).size(), std::size_t(width));
  }
  const std::string narrow = progress_text(usual(), {.width = 60});
  EXPECT_NE(narrow.find("epoch 3/20 41%"), std::string::npos);
  EXPECT_NE(narrow.find("ETA 12:40"), std::string::npos);
  EXPECT_EQ(narrow.find("GiB"), std::string::npos);
  EXPECT_EQ(narrow.find("ends"), std::string::npos);
}

TEST(ProgressText, ColourOnlyWhenAskedAndNeverTheOnlySign) {
  Progress p = usual();
  p.data_wait = 0.31;
  const std::string plain = progress_text(p);
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(plain.find("wait 31%"), std::string::npos);
  std::string colored = progress_text(p, {.color = true});
  EXPECT_NE(colored.find("\x1b[33mwait 31%\x1b[0m"), std::string::npos);
  for (std::size_t at; (at = colored.find('\x1b')) != std::string::npos;) {
    colored.erase(at, colored.find('m', at) - at + 1);
  }
  EXPECT_EQ(colored, plain);
}

TEST(ProgressText, NoFieldCanMoveTheCursor) {
  Progress p = usual();
  p.activity = "evaluating \x1b[2J\r\n\x07 caf\xc3\xa9";
  p.limit = "\x9b";
  p.ends = "\n";
  for (const char c : progress_text(p)) {
    EXPECT_GE(c, 0x20);
    EXPECT_LT(c, 0x7F);
  }
  p.loss = NAN;
  EXPECT_NE(progress_text(p).find("loss nan"), std::string::npos);
}

// ---- the estimate ------------------------------------------------------------------------------

struct Run {
  double rate = 5000;  // samples a second
  int epochs = 10;
  i64 epoch = 500000;
  double warm_up = 0.03;     // extra time at the first step, of all training, at most 8 s
  double evaluation = 0.1;   // after every epoch, of its training
  double save = 0.02;        // likewise, each of two
  double guess_error = 0.2;  // of an evaluation or a save, before one was timed
  double noise = 0.03;       // of a hundredth of an epoch
  bool tell_counts = true;
};

// Simulates the run and says by how much the estimate at `share` of the time was off.
double error_at(const Run& r, double share, unsigned seed) {
  struct Said {
    double now;
    double left;
  };
  std::mt19937 random(seed);
  constexpr int kSaves = 2;
  const double epoch_seconds = double(r.epoch) / r.rate;
  const double evaluation = r.evaluation * epoch_seconds;
  const double save = r.save * epoch_seconds;
  const double guess = 1 + r.guess_error * std::uniform_real_distribution<double>(-1, 1)(random);
  RunPlan plan{.samples = r.epochs * r.epoch,
               .evaluations = r.epochs,
               .saves = r.epochs * kSaves,
               .evaluation_samples = i64(guess * evaluation * r.rate * 3),
               .save_seconds = guess * save};
  if (!r.tell_counts) {
    plan.evaluations.reset();
    plan.saves.reset();
  }
  double now = 1000;
  const double begin = now;
  EtaEstimator eta(plan, now);
  std::vector<Said> said;
  i64 position = 0;
  const i64 block = r.epoch / 100;
  bool first = true;
  for (int e = 0; e < r.epochs; ++e) {
    for (int b = 0; b < 100; ++b) {
      const double noise = std::max(0.2, 1 + r.noise * std::normal_distribution<double>()(random));
      now += double(block) / r.rate * noise +
             (first ? std::min(8.0, r.warm_up * r.epochs * epoch_seconds) : 0);
      first = false;
      position += block;
      eta.trained(now, position);
      if ((b + 1) % (100 / kSaves) == 0) {
        now += save;
        eta.spent(OtherKind::kCheckpoint, now, save);
      }
      said.push_back({now, eta.seconds_left(now).value_or(-1)});
    }
    now += evaluation;
    eta.spent(OtherKind::kEvaluation, now, evaluation);
  }
  const double end = now;
  EXPECT_NEAR(*eta.seconds_left(now), 0, 1e-6);
  for (const Said& s : said) {
    if (s.now - begin >= share * (end - begin)) {
      return std::fabs(s.left - (end - s.now)) / (end - begin);
    }
  }
  return 1;
}

TEST(Eta, AfterATenthOfTheRunItIsWithinFivePercent) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    for (const int epochs : {1, 3, 10, 100}) {
      for (const double rate : {500., 50000.}) {
        // Half of the runs reach no evaluation within the first tenth.
        EXPECT_LT(error_at({.rate = rate, .epochs = epochs}, 0.1, seed), 0.05)
            << epochs << " epochs at " << rate;
      }
    }
  }
}

TEST(Eta, KeepsWithinFivePercentFromThenOn) {
  for (const double share : {0.2, 0.3, 0.5, 0.7, 0.9}) {
    EXPECT_LT(error_at({}, share, 7), 0.05) << share;
    EXPECT_LT(error_at({.tell_counts = false}, share, 7), 0.05) << share;
  }
}

TEST(Eta, CountsEvaluationAndSaving) {
  EtaEstimator eta({.samples = 1000, .evaluations = 10, .saves = 5}, 0);
  EXPECT_FALSE(eta.seconds_left(0));
  eta.trained(10, 100);  // 10 samples a second: 90 s more
  EXPECT_NEAR(*eta.seconds_left(10), 90, 1e-9);
  eta.spent(OtherKind::kEvaluation, 14, 4);
  EXPECT_NEAR(*eta.seconds_left(14), 90 + 9 * 4, 1e-9);
  eta.spent(OtherKind::kCheckpoint, 16, 2);
  EXPECT_NEAR(*eta.seconds_left(16), 90 + 9 * 4 + 4 * 2, 1e-9);
  // Time goes on while nothing is told.
  EXPECT_NEAR(*eta.seconds_left(19), 90 + 9 * 4 + 4 * 2 - 3, 1e-9);
  // What was spent does not slow the rate.
  eta.trained(26, 200);
  EXPECT_NEAR(*eta.rate(), 10, 1e-6);
}

TEST(Eta, FollowsAChangeOfSpeed) {
  EtaEstimator eta({.samples = 1000000, .evaluations = 0, .saves = 0}, 0);
  double now = 0;
  i64 position = 0;
  const auto train = [&](double seconds, double rate) {
    for (int i = 0; i < int(seconds); ++i) {
      now += 1;
      position += i64(rate);
      eta.trained(now, position);
    }
  };
  train(600, 100);
  eta.changed();
  EXPECT_NEAR(*eta.rate(), 100, 1);  // until something is known
  train(3, 200);
  EXPECT_NEAR(*eta.rate(), 200, 2);
  EXPECT_NEAR(*eta.seconds_left(now), double(1000000 - position) / 200, 60);
}

TEST(Eta, ATimeLimitEndsTheRunFirst) {
  EtaEstimator eta({.samples = 1000000, .max_seconds = 100}, 50);
  eta.trained(60, 10);
  EXPECT_NEAR(*eta.seconds_left(60), 90, 1e-9);
  EXPECT_NEAR(*eta.seconds_left(400), 0, 1e-9);
}

TEST(Eta, AResumedRunCountsWhatWasDone) {
  EtaEstimator eta({.samples = 1000, .evaluations = 10, .saves = 0}, 0, 500, 5);
  eta.trained(10, 600);
  eta.spent(OtherKind::kEvaluation, 20, 10);
  EXPECT_NEAR(*eta.seconds_left(20), 40 + 4 * 10, 1e-9);
}

// ---- the line ----------------------------------------------------------------------------------

TEST(ProgressLine, OnATerminalItIsRedrawnAtMostTenTimesASecond) {
  double now = 0;
  std::vector<std::string> drawn;
  ProgressLine line({.terminal = true,
                     .color = false,
                     .width = 70,
                     .clock = [&] { return now; },
                     .draw = [&](std::string_view text) { drawn.emplace_back(text); }});
  for (int i = 0; i < 1000; ++i) {  // ten seconds of steps of 10 ms
    now = 0.01 * i;
    const bool due = line.due();
    const std::size_t before = drawn.size();
    line.update(usual());
    EXPECT_EQ(drawn.size() > before, due);
  }
  EXPECT_GE(drawn.size(), 80u);
  EXPECT_LE(drawn.size(), 101u);
  for (const std::string& text : drawn) {
    EXPECT_EQ(text.front(), '\r');
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_LE(text.size(), 70u + 4);  // "\r" and the code that clears the rest
  }
  const std::size_t before = drawn.size();
  line.finish();
  ASSERT_EQ(drawn.size(), before + 1);
  EXPECT_EQ(drawn.back().back(), '\n');
  line.update(usual());
  line.finish();
  EXPECT_EQ(drawn.size(), before + 1);
}

TEST(ProgressLine, ElsewhereItIsPlainLinesByTimeAndShare) {
  const auto lines = [](double seconds) {
    double now = 0;
    std::vector<std::string> out;
    ProgressLine line({.terminal = false,
                       .clock = [&] { return now; },
                       .line = [&](std::string_view text) { out.emplace_back(text); }});
    for (int i = 0; i <= 10000; ++i) {
      now = seconds * i / 10000;
      Progress p = usual();
      p.share = i / 10000.0;
      line.update(p);
    }
    line.finish();
    for (const std::string& text : out) {
      EXPECT_EQ(text.find_first_of("\r\n\x1b"), std::string::npos);
    }
    return out.size();
  };
  EXPECT_EQ(lines(10), 2u);                   // the first and the last
  EXPECT_NEAR(double(lines(600)), 21, 2);     // every 30 s
  EXPECT_NEAR(double(lines(86400)), 101, 2);  // every 1 %
}

TEST(ProgressLine, QuietSaysNothing) {
  int calls = 0;
  {
    ProgressLine line({.quiet = true,
                       .terminal = true,
                       .draw = [&](std::string_view) { ++calls; },
                       .line = [&](std::string_view) { ++calls; }});
    line.update(usual());
    EXPECT_FALSE(line.due());
  }
  EXPECT_EQ(calls, 0);
}

TEST(ProgressLine, NoColorIsHeeded) {
  const auto drawn = [] {
    std::string out;
    ProgressLine line(
        {.terminal = true, .width = 300, .draw = [&](std::string_view text) { out += text; }});
    line.update(usual());
    return out;
  };
  unsetenv("NO_COLOR");
  EXPECT_NE(drawn().find("\x1b[1m"), std::string::npos);
  setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(drawn().find("\x1b[1m"), std::string::npos);
  unsetenv("NO_COLOR");
}

TEST(ProgressLine, StepsAsideForLogLines) {
  std::vector<std::string> drawn;
  ::testing::internal::CaptureStderr();
  {
    ProgressLine line(
        {.terminal = true, .color = false, .width = 80, .draw = [&](std::string_view text) {
           drawn.emplace_back(text);
         }});
    line.update(usual());
    log::info("a decision of the tuner");
    ASSERT_EQ(drawn.size(), 3u);
    EXPECT_EQ(drawn[1], "\r\x1b[K");
    EXPECT_EQ(drawn[2], drawn[0]);
  }
  log::info("after the line has gone");
  EXPECT_EQ(drawn.size(), 4u);  // finish
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("a decision of the tuner"), std::string::npos);
  EXPECT_NE(log.find("after the line has gone"), std::string::npos);
}

TEST(ProgressLine, ThreadsMayLogAndUpdateAtOnce) {
  ::testing::internal::CaptureStderr();
  int drawn = 0;
  {
    ProgressLine line(
        {.terminal = true, .color = false, .width = 80, .redraw = 0, .draw = [&](std::string_view) {
           ++drawn;
         }});
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          t == 0 ? log::info("line {}", i) : line.update(usual());
        }
      });
    }
    for (std::thread& t : threads) {
      t.join();
    }
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("line 199"), std::string::npos);
  EXPECT_GE(drawn, 400);
}

TEST(TimeOfDay, HasTheFormOfAClock) {
  const std::string now = time_of_day(0);
  ASSERT_EQ(now.size(), 5u);
  EXPECT_EQ(now[2], ':');
  EXPECT_NE(time_of_day(3 * 86400.0).find(" +3d"), std::string::npos);
}

}  // namespace
}  // namespace penstock::measure
