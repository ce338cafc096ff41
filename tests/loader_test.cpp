// The sample ring: the same stream whatever is tuned, nothing lost, nothing repeated.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <thread>

#include "framework/core/random.h"
#include "tests/loader_helpers.h"

namespace penstock::data {
namespace {

TEST(Sampler, EveryEpochIsAPermutationAndEpochsDiffer) {
  for (const i64 size : {1, 2, 3, 5, 8, 100, 1023, 4096, 60'000}) {
    std::vector<i64> before;
    for (const i64 epoch : {0, 1, 7}) {
      const EpochOrder order(11, epoch, size, true);
      std::vector<bool> seen(std::size_t(size), false);
      std::vector<i64> now;
      for (i64 k = 0; k < size; ++k) {
        const i64 i = order.at(k);
        ASSERT_TRUE(i >= 0 && i < size);
        ASSERT_FALSE(seen[std::size_t(i)]) << size << " " << epoch << " " << k;
        seen[std::size_t(i)] = true;
        now.push_back(i);
      }
      if (size >= 8) {
        EXPECT_NE(now, before);
      }
      before = now;
    }
  }
}

// Neighbours in the order are not neighbours in the set, and places are used evenly.
TEST(Sampler, TheOrderLooksShuffled) {
  const i64 size = 60'000;
  const EpochOrder order(3, 0, size, true);
  double displacement = 0;
  i64 adjacent = 0;
  std::vector<i64> thirds(9, 0);
  for (i64 k = 0; k < size; ++k) {
    const i64 i = order.at(k);
    displacement += std::abs(double(i - k));
    ++thirds[std::size_t(3 * (k * 3 / size) + i * 3 / size)];
    if (k > 0 && std::abs(i - order.at(k - 1)) == 1) {
      ++adjacent;
    }
  }
  EXPECT_NEAR(displacement / double(size) / double(size), 1.0 / 3, 0.02);
  EXPECT_LT(adjacent, 20);
  for (const i64 t : thirds) {
    EXPECT_NEAR(double(t), double(size) / 9, double(size) / 9 * 0.1);
  }
}

// All orders of four samples come up about equally often over seeds.
TEST(Sampler, SmallSetsHaveEveryOrder) {
  std::vector<int> counts(24, 0);
  for (std::uint64_t seed = 0; seed < 4800; ++seed) {
    const EpochOrder order(seed, 0, 4, true);
    std::vector<i64> at = {order.at(0), order.at(1), order.at(2), order.at(3)};
    int rank = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      int below = 0;
      for (std::size_t j = i + 1; j < 4; ++j) {
        below += at[j] < at[i] ? 1 : 0;
      }
      rank = rank * int(4 - i) + below;
    }
    ++counts[std::size_t(rank)];
  }
  for (const int c : counts) {
    EXPECT_GT(c, 100);  // of 200
    EXPECT_LT(c, 300);
  }
}

TEST(Sampler, RanksShareEveryPositionOnce) {
  for (const int world : {1, 2, 3, 4}) {
    std::set<i64> seen;
    for (int rank = 0; rank < world; ++rank) {
      const Sampler s{.seed = 1, .size = 10, .rank = rank, .world = world};
      for (i64 n = s.first_at(5); s.position_of(n) < 47; ++n) {
        EXPECT_TRUE(seen.insert(s.position_of(n)).second);
      }
    }
    EXPECT_EQ(seen.size(), 42u);
    EXPECT_EQ(*seen.begin(), 5);
  }
}

// A loader under random changes, checked against the sampler sample by sample.
class Schedule {
 public:
  Schedule(std::uint64_t number, bool fetches, bool wide)
      : g_(42, random::Stream::kSynthetic, 0, number), words_(wide ? 1024 : 2) {
    size_ = 1 + g_.below(wide ? 20'000 : 3000);
    set_ = std::make_shared<Counting>(size_, fetches, words_);
    const i64 slots = wide ? 3000 + g_.below(6000) : 2 + g_.below(600);
    largest_ = wide ? 4000 : 100;
    options_ = options_for(g_.next(), 1 + g_.below(64), slots, words_);
    options_.workers = int(g_.below(4));
    options_.depth = 1 + int(g_.below(6));
    sampler_ = {.seed = options_.sampler.seed, .size = size_};
    loader_ = std::make_unique<Loader>(set_, options_);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      change();
      if (g_.below(200) == 0) {
        resume();
      }
      i64 count = 1 + g_.below(100);
      if (largest_ > 100 && g_.below(40) == 0) {
        count = 1 + g_.below(std::uint32_t(largest_));
      }
      take(std::min(count, loader_->largest_batch()));
      if (testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }

 private:
  void change() {
    switch (g_.below(8)) {
      case 0: loader_->set_workers(int(g_.below(5))); break;
      case 1: loader_->set_depth(1 + int(g_.below(8))); break;
      case 2:
        loader_->set_batch(1 + g_.below(g_.below(10) == 0 ? std::uint32_t(largest_) : 100));
        break;
      case 3: loader_->set_io_concurrency(1 + int(g_.below(3))); break;
      default: break;
    }
  }

  void give_back(std::size_t keep) {
    for (; held_.size() > keep; held_.pop_front()) {
      // What was handed over is still there, whatever was loaded since.
      check(held_.front());
      loader_->release(held_.front());
    }
  }

  void resume() {
    give_back(0);
    at_ = g_.below(std::uint32_t(3 * size_));
    if (g_.below(2) == 0) {
      loader_->rewind(at_);
    } else {
      loader_.reset();
      LoaderOptions resumed = options_;
      resumed.start = at_;
      loader_ = std::make_unique<Loader>(set_, resumed);
    }
  }

  void take(i64 count) {
    give_back(g_.below(3));
    i64 in_use = 0;
    for (const Batch& b : held_) {
      in_use += b.count;
    }
    // Ranges that a growing ring has left behind are free once they are released.
    if (in_use + count > loader_->slots() * 3 / 4) {
      give_back(0);
    }
    const i64 left = loader_->left_in_epoch();
    Batch b = loader_->next(count);
    ASSERT_EQ(b.count, std::min(count, left));
    ASSERT_EQ(b.position, at_);
    check(b);
    at_ += b.count;
    ASSERT_EQ(b.ends_epoch, at_ % size_ == 0);
    held_.push_back(std::move(b));
  }

  void check(const Batch& b) {
    Seen seen;
    seen.take(b, words_);
    ASSERT_LE(b.fields[0].size(), 2u);
    ASSERT_EQ(i64(seen.index.size()), b.count);
    const EpochOrder order = sampler_.order(b.epoch);
    for (i64 i = 0; i < b.count; ++i) {
      ASSERT_EQ(seen.epoch[std::size_t(i)], b.epoch);
      ASSERT_EQ(seen.index[std::size_t(i)], order.at(b.position + i - b.epoch * size_));
      ASSERT_EQ(b.ids[std::size_t(i)], seen.index[std::size_t(i)]);
    }
    ASSERT_EQ(b.targets, b.count);
  }

  random::Generator g_;
  i64 words_;
  i64 size_ = 0;
  i64 largest_ = 0;
  std::shared_ptr<const Dataset> set_;
  LoaderOptions options_;
  Sampler sampler_;
  std::unique_ptr<Loader> loader_;
  i64 at_ = 0;
  std::deque<Batch> held_;
};

// 100,000 random changes of workers, depth and batch, with rewinds and new loaders in between: the
// stream is that of the sampler.
TEST(Loader, IsStreamExactUnderRandomSchedules) {
  for (std::uint64_t round = 0; round < 40; ++round) {
    const bool fetches = round % 5 == 4;
    Schedule(round, fetches, false).run(fetches ? 600 : 3000);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
}

// Batches that outgrow the part of the ring in use, while earlier ones are held.
TEST(Loader, IsStreamExactWhileTheRingGrows) {
  for (std::uint64_t round = 100; round < 124; ++round) {
    Schedule(round, round % 4 == 3, true).run(60);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
}

TEST(Loader, RanksTogetherServeTheStreamOfOne) {
  std::vector<i64> one(95);
  for (int world : {1, 2, 3}) {
    std::vector<i64> all(95, -1);
    for (int rank = 0; rank < world; ++rank) {
      LoaderOptions o = options_for(9, 7, 64);
      o.sampler.rank = rank;
      o.sampler.world = world;
      o.workers = 2;
      o.end = 95;
      Loader loader(std::make_shared<Counting>(30), o);
      while (loader.left() > 0) {
        const Batch b = loader.next(7);
        for (i64 i = 0; i < b.count; ++i) {
          i64& place = all[std::size_t(b.position + i * world)];
          EXPECT_EQ(place, -1);
          place = b.ids[std::size_t(i)];
        }
        loader.release(b);
      }
    }
    if (world == 1) {
      one = all;
    }
    EXPECT_EQ(all, one) << world;
  }
}

TEST(Loader, BatchesEndWithTheEpochAndSmallSetsAreServed) {
  LoaderOptions o = options_for(9, 32, 64);
  Loader loader(std::make_shared<Counting>(10), o);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const Batch b = loader.next(32);
    EXPECT_EQ(b.count, 10);
    EXPECT_EQ(b.epoch, epoch);
    EXPECT_TRUE(b.ends_epoch);
    EXPECT_EQ(std::set<i64>(b.ids.begin(), b.ids.end()).size(), 10u);
    loader.release(b);
  }
  for (int i = 0; i < 10; ++i) {
    const Batch b = loader.next(1);
    EXPECT_EQ(b.count, 1);
    EXPECT_EQ(b.ends_epoch, i == 9);
    loader.release(b);
  }
}

// Loads that block: with W workers, W of them are inside load() at the same time.
class Blocking final : public Counting {
 public:
  explicit Blocking(i64 size, bool fetches = false) : Counting(size, fetches) {}
  bool cheap() const override { return false; }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    if (needs_fetch()) {
      block();
      ahead_ = std::max<int>(ahead_, ++fetched_ - loaded_);
    }
    Counting::fetch(key, raw);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    if (!needs_fetch()) {
      block();
    }
    ++loaded_;
    Counting::load(key, raw, to);
  }
  int most() const { return most_; }
  int ahead() const { return ahead_; }

 private:
  void block() const {
    const int inside = ++inside_;
    int seen = most_.load();
    while (inside > seen && !most_.compare_exchange_weak(seen, inside)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    --inside_;
  }
  mutable std::atomic<int> inside_{0}, most_{0}, fetched_{0}, loaded_{0}, ahead_{0};
};

TEST(Loader, EightWorkersBlockEightAtATimeOnFewCores) {
  for (const int workers : {2, 8}) {
    const auto set = std::make_shared<Blocking>(400);
    LoaderOptions o = options_for(1, 16, 200);
    o.workers = workers;
    o.depth = 4;
    Loader loader(set, o);
    for (int i = 0; i < 12; ++i) {
      loader.release(loader.next(16));
    }
    EXPECT_EQ(set->most(), workers);
  }
}

TEST(Loader, ReadsGoOnApartFromLoadsAndWithinTheirOwnBounds) {
  for (const int workers : {0, 2}) {
    const auto set = std::make_shared<Blocking>(400, true);
    LoaderOptions o = options_for(1, 16, 200);
    o.workers = workers;
    o.io_concurrency = 3;
    Loader loader(set, o);
    for (int i = 0; i < 8; ++i) {
      loader.release(loader.next(16));
    }
    EXPECT_EQ(set->most(), 3);
    loader.set_io_concurrency(9);
    for (int i = 0; i < 8; ++i) {
      loader.release(loader.next(16));
    }
    EXPECT_EQ(set->most(), 9);
    EXPECT_LE(set->ahead(), 2 * (9 + std::max(1, workers)) + 8);
  }
}

// Files that are large beside the samples they become.
class Heavy final : public Counting {
 public:
  explicit Heavy(i64 size) : Counting(size, true) {}
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    Counting::fetch(key, raw);
    raw.resize(100'000);
    held_ += 100'000;
    most_ = std::max<i64>(most_, held_);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    Counting::load(key, raw, to);
    held_ -= 100'000;
  }
  i64 most() const { return most_; }

 private:
  mutable std::atomic<i64> held_{0}, most_{0};
};

TEST(Loader, BytesThatWereReadAheadAreBoundedByTheRingsLimit) {
  for (const int workers : {0, 1}) {
    const auto set = std::make_shared<Heavy>(1000);
    LoaderOptions o = options_for(1, 64, 400);
    o.max_bytes = 1'000'000;
    o.workers = workers;
    o.io_concurrency = 4;
    Loader loader(set, o);
    for (int i = 0; i < 10; ++i) {
      loader.release(loader.next(64));
    }
    // Half of the limit, and what each reader was holding when that was reached.
    EXPECT_LE(set->most(), 500'000 + 5 * 100'000);
    EXPECT_GE(set->most(), 500'000);
  }
}

TEST(Loader, WaitsAreSplitByTheLastSample) {
  for (const bool fetches : {false, true}) {
    for (const int workers : {0, 1}) {
      LoaderOptions o = options_for(1, 8, 64);
      o.workers = workers;
      Loader loader(std::make_shared<Blocking>(64, fetches), o);
      for (int i = 0; i < 6; ++i) {
        loader.release(loader.next(8));
      }
      const LoaderStats s = loader.take_stats();
      EXPECT_EQ(s.calls, 6);
      EXPECT_GT(s.wait_seconds, 0);
      const WaitParts& w = s.wait;
      const double parts = w.fetch + w.decode + w.queueing + w.scheduling + w.order;
      EXPECT_NEAR(parts, s.wait_seconds, s.wait_seconds * 0.01 + 1e-6);
      EXPECT_EQ(w.fetch > 0, fetches);
      EXPECT_GE(s.samples, 48);
      EXPECT_GE(s.cpu_seconds, 0);
      EXPECT_GE(s.delay_seconds, 0);
      EXPECT_LE(s.cpu_seconds + s.delay_seconds, s.service_seconds * 1.05 + 1e-3);
      EXPECT_EQ(s.fetched > 0, fetches);
      EXPECT_EQ(s.fetched_bytes, 8 * s.fetched);
      EXPECT_EQ(loader.take_stats().calls, 0);
    }
  }
}

}  // namespace
}  // namespace penstock::data
