// The step account against timelines whose truth is known: built by hand, and random ones whose
// idle time is classified a second time, from the definitions, instant by instant.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "framework/measure/account.h"

namespace penstock::measure {
namespace {

using Timeline = Account::Timeline;

void expect_adds_up(const StepAccount& a) {
  EXPECT_NEAR(a.accounted() + a.unaccounted, a.wall, 1e-9 * std::max(1.0, a.wall));
  EXPECT_LE(std::fabs(a.unaccounted), 0.01 * a.wall);
  EXPECT_LE(a.wait.total(), a.data_wait + 1e-12);
  EXPECT_LE(a.memcpy_exposed, a.h2d_exposed + 1e-12);
  EXPECT_GE(a.hidden_wait, -1e-12);
}

TEST(Account, EachKindOfIdleTimeByItsRule) {
  Account account(Timeline::kDevice, 0);
  // In next() until 2, copy until 3, launch at 3.5, step until 10.
  account.waited({0, 2}, {.fetch = 1.5, .decode = 0.5});
  account.copied(2, {2.25, 3});
  account.ran({3.5, 10}, 32);
  const StepAccount a = account.close();
  EXPECT_DOUBLE_EQ(a.wall, 10);
  EXPECT_DOUBLE_EQ(a.data_wait, 2);
  EXPECT_DOUBLE_EQ(a.wait.fetch, 1.5);
  EXPECT_DOUBLE_EQ(a.wait.decode, 0.5);
  EXPECT_DOUBLE_EQ(a.h2d_exposed, 1);
  EXPECT_DOUBLE_EQ(a.memcpy_exposed, 0.75);
  EXPECT_DOUBLE_EQ(a.memcpy_total, 0.75);
  EXPECT_DOUBLE_EQ(a.launch_gap, 0.5);
  EXPECT_DOUBLE_EQ(a.kernels, 6.5);
  EXPECT_EQ(a.steps, 1);
  EXPECT_EQ(a.samples, 32);
  expect_adds_up(a);
}

TEST(Account, AWaitBehindQueuedWorkIsHidden) {
  Account account(Timeline::kDevice, 0);
  account.waited({0, 0.5}, {});
  account.ran({0.5, 10}, 1);
  account.waited({1, 11}, {.decode = 10});  // nine hidden, one exposed
  account.ran({11, 20}, 1);
  const StepAccount a = account.close();
  EXPECT_DOUBLE_EQ(a.data_wait, 1.5);
  EXPECT_DOUBLE_EQ(a.hidden_wait, 9);
  EXPECT_DOUBLE_EQ(a.wait.decode, 1);  // a tenth of its ten seconds
  expect_adds_up(a);
}

TEST(Account, WaitingComesBeforeCopyingInTheSameInstant) {
  Account account(Timeline::kDevice, 0);
  account.waited({0, 4}, {});
  account.copied(1, {1, 6});  // another batch's copy is under way
  account.ran({8, 9}, 1);
  const StepAccount a = account.close();
  EXPECT_DOUBLE_EQ(a.data_wait, 4);
  EXPECT_DOUBLE_EQ(a.h2d_exposed, 2);
  EXPECT_DOUBLE_EQ(a.launch_gap, 2);
  EXPECT_DOUBLE_EQ(a.wait.total(), 0);  // the loader could not tell why
}

TEST(Account, OtherWorkIsTimedOnItsOwnAndNeverTheRemainder) {
  Account account(Timeline::kDevice, 0);
  account.ran({0, 1}, 1);
  account.spent(OtherKind::kEvaluation, {0.5, 5});  // begins behind queued work
  account.spent(OtherKind::kCheckpoint, {5, 6});
  account.waited({6, 7}, {});
  account.ran({7.5, 8}, 1);
  const StepAccount a = account.close();
  EXPECT_DOUBLE_EQ(a.other[std::size_t(OtherKind::kEvaluation)], 4);
  EXPECT_DOUBLE_EQ(a.other[std::size_t(OtherKind::kCheckpoint)], 1);
  EXPECT_DOUBLE_EQ(a.data_wait, 1);
  EXPECT_DOUBLE_EQ(a.launch_gap, 0.5);
  expect_adds_up(a);
}

TEST(Account, TheTracedStepSplitsEventPairsUntilTheNext) {
  Account account(Timeline::kDevice, 0);
  account.ran({0, 1}, 1);
  EXPECT_FALSE(account.close().split_age);  // never traced: no age, all kernels
  account.traced({.kernels = 0.6, .copies = 0.1, .pair = 1.0, .traced_at = 1});
  account.ran({1, 3}, 1);
  account.ran({3, 5}, 1);
  const StepAccount a = account.close();
  EXPECT_DOUBLE_EQ(a.kernels, 2.4);
  EXPECT_DOUBLE_EQ(a.launch_gap, 1.6);
  EXPECT_DOUBLE_EQ(a.memcpy_total, 0.4);
  EXPECT_DOUBLE_EQ(*a.split_age, 4);
  expect_adds_up(a);
}

TEST(Account, ASpanOverAnIntervalsBorderIsChargedOnce) {
  Account account(Timeline::kDevice, 0);
  account.ran({0, 2}, 1);
  account.waited({1, 5}, {.fetch = 4});
  const StepAccount first = account.close();
  account.ran({5, 6}, 1);
  const StepAccount second = account.close();
  EXPECT_DOUBLE_EQ(first.data_wait, 0);
  EXPECT_DOUBLE_EQ(second.data_wait, 3);
  EXPECT_DOUBLE_EQ(second.wait.fetch, 3);
  EXPECT_DOUBLE_EQ(first.hidden_wait + second.hidden_wait, 1);
  StepAccount both = first;
  both += second;
  EXPECT_DOUBLE_EQ(both.wall, 6);
  expect_adds_up(both);
}

TEST(Account, DriftOfTheClocksIsUnaccounted) {
  const Anchor first{.host = 100, .device = 0};
  const Anchor second{.host = 110.05, .device = 0};  // recorded when the first said 110
  Account account(Timeline::kDevice, 100);
  account.ran(first.host_of(Span{0, 10}), 1);
  const StepAccount a = account.close(second.host_of(0));
  EXPECT_NEAR(a.wall, 10.05, 1e-12);
  EXPECT_NEAR(a.unaccounted, 0.05, 1e-12);
  account.ran(second.host_of(Span{0, 10}), 1);
  EXPECT_NEAR(account.close().unaccounted, 0, 1e-12);
}

TEST(Account, OnTheCpuWhatNobodyTimedIsUnaccounted) {
  Account account(Timeline::kHost, 0);
  for (int i = 0; i < 100; ++i) {
    const double t = i;
    account.waited({t, t + 0.2}, {.decode = 0.2});
    account.ran({t + 0.2, t + 0.995}, 8);
  }
  const StepAccount a = account.close(100);
  EXPECT_NEAR(a.wall, 100, 1e-9);
  EXPECT_NEAR(a.data_wait, 20, 1e-9);
  EXPECT_NEAR(a.kernels, 79.5, 1e-9);
  EXPECT_NEAR(a.launch_gap, 0, 1e-9);
  EXPECT_NEAR(a.unaccounted, 0.5, 1e-9);
  EXPECT_NEAR(a.hidden_wait, 0, 1e-9);
}

TEST(Account, AnEmptyIntervalIsEmpty) {
  Account account(Timeline::kDevice, 5);
  const StepAccount a = account.close();
  EXPECT_EQ(a.wall, 0);
  EXPECT_EQ(a.share(a.kernels), 0);
  EXPECT_EQ(a.steps, 0);
}

TEST(Account, DescribesItselfWithoutEmptyTerms) {
  StepAccount a{.wall = 10, .data_wait = 1, .wait = {.fetch = 0.9}, .kernels = 9};
  EXPECT_EQ(describe(a), "data wait 10.0 % (fetch 9.0), kernels 90.0 %");
}

// ---- random machines ---------------------------------------------------------------------------

// A host that waits for batches, copies them and launches steps ahead of a device, and now and then
// evaluates or saves. All that happened is kept, so that truth can be worked out afterwards.
struct Machine {
  struct Other {
    OtherKind kind;
    Span span;
  };
  struct Copy {
    double issued;
    Span span;
  };
  std::vector<Span> waits;
  std::vector<Copy> copies;
  std::vector<Other> others;
  std::vector<Span> steps;

  explicit Machine(std::mt19937& random) {
    const auto uniform = [&](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    const double step = uniform(0.5, 20), batch = step * uniform(0.2, 2);
    const double copy = step * uniform(0, 0.8), launch = step * uniform(0.001, 0.6);
    const bool overlaps = uniform(0, 1) < 0.5;  // copy of the next batch beside this step
    const int ahead = 16;
    double host = 0, device = 0, copy_free = 0, ready = 0;
    const int count = 200;
    for (int k = 0; k < count; ++k) {
      ready = std::max(ready, host - 4 * batch) + batch * uniform(0.5, 1.5);
      if (k >= ahead) {
        host = std::max(host, steps[std::size_t(k - ahead)].end);
      }
      const double done = std::max(host + 1e-4, ready);
      waits.push_back({host, done});
      host = done + 1e-4;
      const double earliest =
          overlaps || k == 0 ? (k >= 2 ? steps[std::size_t(k - 2)].end : 0) : device;
      const double begin = std::max({host + 2e-4, copy_free, earliest});
      copies.push_back({host, {begin, begin + copy * uniform(0.8, 1.2)}});
      copy_free = copies.back().span.end;
      host += launch * uniform(0.8, 1.2);
      const double start = std::max({device, host, copy_free + 1e-4});
      steps.push_back({start, start + step * uniform(0.9, 1.1)});
      device = steps.back().end;
      if (uniform(0, 1) < 0.03) {
        const auto kind = OtherKind(int(uniform(0, 4)));
        const double end = std::max(host, device) + step * uniform(0.1, 10);
        others.push_back({kind, {host, end}});
        host = end;
      }
    }
  }

  // Idle time classified at instants so close together that the error is far below 1 %.
  StepAccount truth() const {
    StepAccount t{.wall = steps.back().end};
    double position = 0;
    const auto inside = [](const Span& s, double at) { return s.begin <= at && at < s.end; };
    for (const Span& step : steps) {
      t.kernels += step.end - step.begin;
      const int pieces = 1500;
      const double dt = (step.begin - position) / pieces;
      for (int i = 0; i < pieces && dt > 0; ++i) {
        const double at = position + (i + 0.5) * dt;
        const auto wait =
            std::find_if(waits.begin(), waits.end(), [&](const Span& s) { return inside(s, at); });
        const auto other = std::find_if(others.begin(), others.end(),
                                        [&](const Other& o) { return inside(o.span, at); });
        const bool copying = std::any_of(copies.begin(), copies.end(), [&](const Copy& c) {
          return c.issued <= at && at < c.span.end;
        });
        if (wait != waits.end()) {
          t.data_wait += dt;
        } else if (other != others.end()) {
          t.other[std::size_t(other->kind)] += dt;
        } else if (copying) {
          t.h2d_exposed += dt;
        } else {
          t.launch_gap += dt;
        }
      }
      position = step.end;
    }
    return t;
  }
};

TEST(Account, RandomTimelinesMatchTheirTruthWithinOnePercent) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const Machine machine(random);
    Account account(Timeline::kDevice, 0);
    StepAccount sum;
    std::size_t wait = 0;
    std::size_t copy = 0;
    std::size_t other = 0;
    for (std::size_t k = 0; k < machine.steps.size(); ++k) {
      // A step's events are read after they have passed, and by then the host has told all that it
      // did before, however far ahead of the device it ran.
      const double passed = machine.steps[k].end;
      for (; wait < machine.waits.size() && machine.waits[wait].begin < passed; ++wait) {
        account.waited(machine.waits[wait], {});
      }
      for (; copy < machine.copies.size() && machine.copies[copy].issued < passed; ++copy) {
        account.copied(machine.copies[copy].issued, machine.copies[copy].span);
      }
      for (; other < machine.others.size() && machine.others[other].span.begin < passed; ++other) {
        account.spent(machine.others[other].kind, machine.others[other].span);
      }
      account.ran(machine.steps[k], 1);
      if (k % 37 == 36) {
        sum += account.close();
      }
    }
    sum += account.close();
    const StepAccount truth = machine.truth();
    const double tolerance = 0.01 * truth.wall;
    EXPECT_NEAR(sum.wall, truth.wall, 1e-6);
    EXPECT_NEAR(sum.data_wait, truth.data_wait, tolerance) << seed;
    EXPECT_NEAR(sum.h2d_exposed, truth.h2d_exposed, tolerance) << seed;
    EXPECT_NEAR(sum.launch_gap, truth.launch_gap, tolerance) << seed;
    EXPECT_NEAR(sum.kernels, truth.kernels, tolerance) << seed;
    for (std::size_t kind = 0; kind < kOtherKinds; ++kind) {
      EXPECT_NEAR(sum.other[kind], truth.other[kind], tolerance) << seed;
    }
    double waited = 0;
    for (const Span& w : machine.waits) {
      waited += w.length();
    }
    EXPECT_NEAR(sum.data_wait + sum.hidden_wait, waited, 1e-6) << seed;
    expect_adds_up(sum);
  }
}

}  // namespace
}  // namespace penstock::measure
