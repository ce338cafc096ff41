// The sample ring: the same stream whatever is tuned, nothing lost, nothing repeated.
#include <dirent.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "data/loader.h"
#include "data/memory_set.h"
#include "framework/core/check.h"
#include "framework/core/random.h"

namespace penstock::data {
namespace {

// Sample i holds i and the epoch it was loaded in.
class Counting : public Dataset {
 public:
  explicit Counting(i64 size, bool fetches = false) : size_(size), fetches_(fetches) {
    fields_ = {{.name = "value", .dtype = DType::i64, .shape = {2}}};
  }
  i64 size() const override { return size_; }
  std::span<const Field> fields() const override { return fields_; }
  bool needs_fetch() const override { return fetches_; }
  bool cheap() const override { return !fetches_; }
  std::string describe(i64 index) const override { return format("file-{}", index); }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    raw.resize(8);
    std::memcpy(raw.data(), &key.index, 8);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    std::int64_t values[2] = {key.index, key.epoch};
    if (fetches_) {
      std::memcpy(values, raw.data(), 8);
    }
    std::memcpy(to[0], values, 16);
  }

 private:
  i64 size_;
  bool fetches_;
  std::vector<Field> fields_;
};

struct Seen {
  std::vector<i64> index, epoch;
  void take(const Batch& b) {
    for (const Rows& rows : b.fields[0]) {
      const auto* v = reinterpret_cast<const std::int64_t*>(rows.data);
      for (i64 i = 0; i < rows.count; ++i) {
        index.push_back(v[2 * i]);
        epoch.push_back(v[2 * i + 1]);
      }
    }
  }
};

LoaderOptions options_for(std::uint64_t seed, i64 batch, i64 slots) {
  return {.sampler = {.seed = seed}, .batch = batch, .max_workers = 8, .max_bytes = 4096 + slots * 16};
}

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

// 100,000 random changes of workers, depth and batch, with rewinds and new loaders in between: the
// stream is that of the sampler.
TEST(Loader, IsStreamExactUnderRandomSchedules) {
  random::Generator g(42, random::Stream::kSynthetic, 0, 0);
  i64 changes = 0;
  for (int round = 0; round < 40; ++round) {
    const bool fetches = round % 5 == 4;
    const i64 size = 1 + g.below(3000);
    const auto set = std::make_shared<Counting>(size, fetches);
    const std::uint64_t seed = g.next();
    const i64 slots = 2 + g.below(600);
    LoaderOptions o = options_for(seed, 1 + g.below(64), slots);
    o.workers = int(g.below(4));
    o.depth = 1 + int(g.below(6));
    auto loader = std::make_unique<Loader>(set, o);
    const Sampler sampler{.seed = seed, .size = size};
    i64 at = 0;
    std::vector<Batch> held;
    for (int step = 0; step < (fetches ? 400 : 3000); ++step) {
      switch (g.below(8)) {
        case 0: loader->set_workers(int(g.below(5))); break;
        case 1: loader->set_depth(1 + int(g.below(8))); break;
        case 2: loader->set_batch(1 + g.below(100)); break;
        case 3: loader->set_io_concurrency(1 + int(g.below(3))); break;
        default: break;
      }
      ++changes;
      if (g.below(200) == 0) {
        for (const Batch& b : held) {
          loader->release(b);
        }
        held.clear();
        at = g.below(std::uint32_t(3 * size));
        if (g.below(2) == 0) {
          loader->rewind(at);
        } else {
          loader.reset();
          LoaderOptions resumed = o;
          resumed.start = at;
          loader = std::make_unique<Loader>(set, resumed);
        }
      }
      const i64 count = std::min<i64>(1 + g.below(100), loader->largest_batch());
      const i64 left = loader->left_in_epoch();
      if (i64(held.size()) > 0 && (g.below(2) == 0 || held.size() > 1 || 2 * count > slots)) {
        for (const Batch& b : held) {
          loader->release(b);
        }
        held.clear();
      }
      i64 in_use = 0;
      for (const Batch& b : held) {
        in_use += b.count;
      }
      if (in_use + count > loader->slots()) {
        for (const Batch& b : held) {
          loader->release(b);
        }
        held.clear();
      }
      Batch b = loader->next(count);
      ASSERT_EQ(b.count, std::min(count, left));
      ASSERT_EQ(b.position, at);
      Seen seen;
      seen.take(b);
      for (i64 i = 0; i < b.count; ++i) {
        const i64 epoch = sampler.epoch_of(at + i);
        static thread_local EpochOrder order;
        order = epoch == order.epoch() && i > 0 ? order : sampler.order(epoch);
        ASSERT_EQ(seen.epoch[std::size_t(i)], epoch);
        ASSERT_EQ(seen.index[std::size_t(i)], order.at(at + i - epoch * size));
        ASSERT_EQ(b.ids[std::size_t(i)], seen.index[std::size_t(i)]);
      }
      at += b.count;
      ASSERT_EQ(b.ends_epoch, at % size == 0);
      held.push_back(std::move(b));
    }
  }
  EXPECT_GE(changes, 95'000);
}

int open_descriptors() {
  int n = 0;
  DIR* d = opendir("/proc/self/fd");
  while (readdir(d) != nullptr) {
    ++n;
  }
  closedir(d);
  return n;
}

TEST(Loader, AThousandEarlyBreaksLeaveNothingBehind) {
  const auto set = std::make_shared<Counting>(500, true);
  const auto threads = [] {
    int n = 0;
    DIR* d = opendir("/proc/self/task");
    while (readdir(d) != nullptr) {
      ++n;
    }
    closedir(d);
    return n;
  };
  const auto once = [&](int i) {
    LoaderOptions o = options_for(std::uint64_t(i), 8, 200);
    o.workers = i % 4;
    o.io_concurrency = 1 + i % 3;
    Loader loader(set, o);
    if (i % 2 == 0) {
      (void)loader.next(5);
    }
  };
  for (int i = 0; i < 20; ++i) {
    once(i);
  }
  const int fds = open_descriptors();
  const int before = threads();
  for (int i = 0; i < 1000; ++i) {
    once(i);
  }
  EXPECT_EQ(open_descriptors(), fds);
  // oneTBB keeps its own pool; it must not grow with loaders.
  EXPECT_LE(threads(), before + 8);
}

class Failing final : public Counting {
 public:
  Failing(i64 size, std::set<i64> bad) : Counting(size), bad_(std::move(bad)) {}
  bool cheap() const override { return false; }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    if (bad_.count(key.index) != 0) {
      throw DataError(format("file-{} is truncated", key.index));
    }
    Counting::load(key, raw, to);
  }

 private:
  std::set<i64> bad_;
};

TEST(Loader, AnErrorArrivesAtItsOwnSample) {
  const auto set = std::make_shared<Failing>(64, std::set<i64>{37});
  LoaderOptions o = options_for(1, 4, 64);
  o.sampler.shuffle = false;
  o.workers = 3;
  Loader loader(set, o);
  i64 got = 0;
  try {
    while (true) {
      const Batch b = loader.next(4);
      got += b.count;
      loader.release(b);
    }
  } catch (const DataError& e) {
    EXPECT_NE(std::string(e.what()).find("file-37"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("position 37"), std::string::npos) << e.what();
  }
  EXPECT_EQ(got, 36);
}

TEST(Loader, BadSamplesAreReplacedAlikeByAnyNumberOfWorkers) {
  std::vector<std::vector<i64>> streams;
  std::vector<std::vector<i64>> bad;
  for (const int workers : {0, 1, 4}) {
    const auto set = std::make_shared<Failing>(100, std::set<i64>{3, 4, 50, 99});
    LoaderOptions o = options_for(5, 8, 64);
    o.workers = workers;
    o.bad = {.replace = true, .max_count = 100, .max_rate = 0.5};
    o.end = 200;
    Loader loader(set, o);
    std::vector<i64> ids;
    while (loader.left() > 0) {
      const Batch b = loader.next(8);
      ids.insert(ids.end(), b.ids.begin(), b.ids.end());
      loader.release(b);
    }
    EXPECT_EQ(ids.size(), 200u);
    streams.push_back(ids);
    bad.push_back(loader.bad_samples());
  }
  EXPECT_EQ(streams[0], streams[1]);
  EXPECT_EQ(streams[0], streams[2]);
  EXPECT_EQ(bad[0], bad[2]);
  EXPECT_FALSE(bad[0].empty());
}

TEST(Loader, TooManyBadSamplesAreAnError) {
  const auto set = std::make_shared<Failing>(100, std::set<i64>{1, 2, 3, 4, 5, 6});
  LoaderOptions o = options_for(5, 10, 64);
  o.bad = {.replace = true, .max_count = 3, .max_rate = 1};
  Loader loader(set, o);
  EXPECT_THROW(
      {
        for (int i = 0; i < 20; ++i) {
          loader.release(loader.next(10));
        }
      },
      DataError);
}

// Loads that block: with W workers, W of them are inside load() at the same time.
class Blocking final : public Counting {
 public:
  using Counting::Counting;
  bool cheap() const override { return false; }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    const int inside = ++inside_;
    int seen = most_.load();
    while (inside > seen && !most_.compare_exchange_weak(seen, inside)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    --inside_;
    Counting::load(key, raw, to);
  }
  int most() const { return most_; }

 private:
  mutable std::atomic<int> inside_{0}, most_{0};
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

class Hanging final : public Counting {
 public:
  explicit Hanging(std::shared_ptr<std::atomic<bool>> go) : Counting(10, true), go_(std::move(go)) {}
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    while (key.index == 6 && !*go_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    Counting::fetch(key, raw);
  }

 private:
  std::shared_ptr<std::atomic<bool>> go_;
};

TEST(Loader, AReadThatHangsIsNamedByItsFile) {
  const auto go = std::make_shared<std::atomic<bool>>(false);
  {
    LoaderOptions o = options_for(1, 2, 16);
    o.sampler.shuffle = false;
    o.read_limit = 0.3;
    Loader loader(std::make_shared<Hanging>(go), o);
    try {
      for (int i = 0; i < 5; ++i) {
        loader.release(loader.next(2));
      }
      FAIL() << "no error";
    } catch (const StalledError& e) {
      EXPECT_NE(std::string(e.what()).find("file-6"), std::string::npos) << e.what();
    }
  }
  *go = true;
}

TEST(Loader, ASampleLargerThanTheRingNamesTheKey) {
  LoaderOptions o = options_for(1, 2, 1);
  try {
    const Loader loader(std::make_shared<Counting>(10), o);
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("loader.max_bytes"), std::string::npos);
  }
}

TEST(Loader, WaitsAreSplitByTheLastSample) {
  const auto set = std::make_shared<Blocking>(64);
  LoaderOptions o = options_for(1, 8, 64);
  o.workers = 1;
  Loader loader(set, o);
  for (int i = 0; i < 6; ++i) {
    loader.release(loader.next(8));
  }
  const LoaderStats s = loader.take_stats();
  EXPECT_EQ(s.calls, 6);
  EXPECT_GT(s.wait_seconds, 0);
  const double parts = s.wait.fetch + s.wait.decode + s.wait.queueing + s.wait.order;
  EXPECT_LE(parts, s.wait_seconds * 1.001 + 1e-6);
  EXPECT_GT(parts, s.wait_seconds * 0.8);
  EXPECT_EQ(loader.take_stats().calls, 0);
}

}  // namespace
}  // namespace penstock::data
