// What goes wrong around a loader arrives where it belongs, and leaves nothing behind.
#include <dirent.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <thread>

#include "framework/core/machine.h"
#include "tests/loader_helpers.h"

namespace penstock::data {
namespace {

int entries_of(const char* folder) {
  int n = 0;
  DIR* d = opendir(folder);
  while (readdir(d) != nullptr) {
    ++n;
  }
  closedir(d);
  return n;
}

TEST(Loader, AThousandEarlyBreaksLeaveNothingBehind) {
  const auto once = [](int i) {
    LoaderOptions o = options_for(std::uint64_t(i), 8, 200);
    o.workers = i % 4;
    o.io_concurrency = 1 + i % 3;
    Loader loader(std::make_shared<Counting>(500, i % 5 != 0), o);
    if (i % 2 == 0) {
      (void)loader.next(5);
    }
  };
  for (int i = 0; i < 20; ++i) {
    once(i);
  }
  const int fds = entries_of("/proc/self/fd");
  const int threads = entries_of("/proc/self/task");
  [[maybe_unused]] const i64 memory = machine::resident_memory();
  for (int i = 0; i < 1000; ++i) {
    once(i);
  }
  EXPECT_EQ(entries_of("/proc/self/fd"), fds);
  // oneTBB keeps its own threads; they must not grow in number with loaders.
  EXPECT_LE(entries_of("/proc/self/task"), threads + 8);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(machine::resident_memory() - memory, i64{64} << 20);
#endif
}

// The ring may be large; what a small batch needs of it is little.
TEST(Loader, MemoryThatIsNotNeededIsNotTouched) {
  const i64 row = 1024;
  const auto set = std::make_shared<Counting>(100'000, false, row / 8);
  LoaderOptions o = options_for(1, 16, 400'000, row / 8);
  o.workers = 2;
  const i64 before = machine::resident_memory();
  Loader loader(set, o);
  for (int i = 0; i < 25'000; ++i) {
    loader.release(loader.next(16));
  }
  EXPECT_EQ(loader.slots(), 400'000);
  EXPECT_LT(machine::resident_memory() - before, i64{100} << 20);
}

// Fails for some samples, in fetch() or in load(), in a way of its choice.
class Failing final : public Counting {
 public:
  Failing(i64 size, std::set<i64> bad, bool fetches, std::function<void(i64)> fault)
      : Counting(size, fetches), bad_(std::move(bad)), fault_(std::move(fault)) {}
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    if (bad_.count(key.index) != 0) {
      fault_(key.index);
    }
    Counting::fetch(key, raw);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    if (!needs_fetch() && bad_.count(key.index) != 0) {
      fault_(key.index);
    }
    Counting::load(key, raw, to);
  }

 private:
  std::set<i64> bad_;
  std::function<void(i64)> fault_;
};

void truncated(i64 index) {
  throw DataError(format("file-{} is truncated", index));
}

TEST(Loader, AnErrorArrivesAtItsOwnSample) {
  for (const bool fetches : {false, true}) {
    for (const int workers : {0, 1, 4}) {
      for (const int depth : {1, 2, 8}) {
        const auto set = std::make_shared<Failing>(64, std::set<i64>{37}, fetches, truncated);
        LoaderOptions o = options_for(1, 4, 64);
        o.sampler.shuffle = false;
        o.workers = workers;
        o.depth = depth;
        o.io_concurrency = 3;
        Loader loader(set, o);
        i64 got = 0;
        try {
          while (true) {
            const Batch b = loader.next(4);
            got += b.count;
            loader.release(b);
          }
        } catch (const DataError& e) {
          EXPECT_NE(std::string(e.what()).find("position 37 (file-37)"), std::string::npos)
              << e.what();
        }
        EXPECT_EQ(got, 36);
        // It stays there, and nothing else is lost.
        EXPECT_THROW((void)loader.next(4), DataError);
        EXPECT_EQ(loader.next(1).ids[0], 36);
      }
    }
  }
}

TEST(Loader, WhateverALoadThrowsArrives) {
  const std::pair<std::function<void(i64)>, std::function<void(Loader&)>> kinds[] = {
      {[](i64) { throw 42; }, [](Loader& l) { EXPECT_THROW((void)l.next(4), Error); }},
      {[](i64) { throw std::bad_alloc(); },
       [](Loader& l) { EXPECT_THROW((void)l.next(4), std::bad_alloc); }},
      {[](i64) { throw std::runtime_error("odd"); },
       [](Loader& l) { EXPECT_THROW((void)l.next(4), Error); }},
      {[](i64) { throw OutOfMemory("none left", {}); },
       [](Loader& l) { EXPECT_THROW((void)l.next(4), OutOfMemory); }},
      {[](i64) { throw ConfigError("no such filter"); },
       [](Loader& l) { EXPECT_THROW((void)l.next(4), DataError); }},
  };
  for (const auto& [fault, expect] : kinds) {
    for (const bool fetches : {false, true}) {
      for (const int workers : {0, 2}) {
        LoaderOptions o = options_for(1, 4, 64);
        o.workers = workers;
        // Only what is wrong with data may be replaced.
        o.bad = {.replace = true};
        Loader loader(std::make_shared<Failing>(1, std::set<i64>{0}, fetches, fault), o);
        expect(loader);
      }
    }
  }
}

TEST(Loader, BadSamplesAreReplacedAlikeByAnyNumberOfWorkers) {
  const std::set<i64> wrong = {3, 4, 50, 99};
  std::vector<std::vector<i64>> streams;
  std::vector<std::vector<i64>> bad;
  for (const bool fetches : {false, true}) {
    for (const int workers : {0, 1, 4}) {
      LoaderOptions o = options_for(5, 8, 64);
      o.workers = workers;
      o.bad = {.replace = true, .max_count = 100, .max_rate = 0.5};
      o.end = 200;
      Loader loader(std::make_shared<Failing>(100, wrong, fetches, truncated), o);
      std::vector<i64> ids;
      Seen seen;
      while (loader.left() > 0) {
        const Batch b = loader.next(8);
        seen.take(b);
        ids.insert(ids.end(), b.ids.begin(), b.ids.end());
        loader.release(b);
      }
      EXPECT_EQ(loader.next(8).count, 0);
      EXPECT_EQ(ids.size(), 200u);
      EXPECT_EQ(seen.index, ids);
      for (const i64 id : ids) {
        EXPECT_EQ(wrong.count(id), 0u);
      }
      streams.push_back(ids);
      bad.push_back(loader.bad_samples());
    }
  }
  for (std::size_t i = 1; i < streams.size(); ++i) {
    EXPECT_EQ(streams[0], streams[i]);
    EXPECT_EQ(bad[0], bad[i]);
  }
  // Two epochs; 4 is met a second time in place of 3.
  EXPECT_EQ(bad[0].size(), 10u);
}

TEST(Loader, BadSamplesBehindARewindAreCountedOnce) {
  LoaderOptions o = options_for(5, 10, 200);
  o.sampler.shuffle = false;
  o.workers = 2;
  o.bad = {.replace = true, .max_count = 5, .max_rate = 1};
  Loader loader(std::make_shared<Failing>(100, std::set<i64>{5, 25, 45}, false, truncated), o);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 5; ++i) {
      loader.release(loader.next(10));
    }
    EXPECT_EQ(loader.bad_samples(), (std::vector<i64>{5, 25, 45}));
    loader.rewind(20);
    EXPECT_EQ(loader.bad_samples(), (std::vector<i64>{5}));
    loader.rewind(round % 2 == 0 ? 0 : 5);
    EXPECT_TRUE(loader.bad_samples().empty());
    loader.rewind(0);
  }
}

TEST(Loader, TooManyBadSamplesAreAnError) {
  const auto run = [](const BadSamples& bad, i64 samples) {
    LoaderOptions o = options_for(5, 10, 64);
    o.bad = bad;
    Loader loader(std::make_shared<Failing>(1000, std::set<i64>{1, 200, 300, 400, 500, 600}, false,
                                            truncated),
                  o);
    for (i64 i = 0; i < samples; i += 10) {
      loader.release(loader.next(10));
    }
    return loader.bad_samples().size();
  };
  EXPECT_EQ(run({.replace = true, .max_count = 6, .max_rate = 0.01}, 1000), 6u);
  EXPECT_THROW(run({.replace = true, .max_count = 5, .max_rate = 1}, 1000), DataError);
  EXPECT_THROW(run({.replace = true, .max_count = 100, .max_rate = 0.005}, 2000), DataError);
  // Every one of them bad: an end, not an endless search.
  std::set<i64> all;
  for (i64 i = 0; i < 50; ++i) {
    all.insert(i);
  }
  LoaderOptions o = options_for(5, 10, 64);
  o.bad = {.replace = true, .max_count = 1'000'000, .max_rate = 1};
  Loader loader(std::make_shared<Failing>(50, all, true, truncated), o);
  EXPECT_THROW((void)loader.next(1), DataError);
}

// Hangs at sample 6, in fetch() or in load(), until it is let go.
class Hanging final : public Counting {
 public:
  Hanging(std::shared_ptr<std::atomic<bool>> go, bool in_fetch)
      : Counting(10, in_fetch), go_(std::move(go)) {}
  bool cheap() const override { return false; }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override {
    wait(key.index);
    Counting::fetch(key, raw);
  }
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> to) const override {
    if (!needs_fetch()) {
      wait(key.index);
    }
    Counting::load(key, raw, to);
  }

 private:
  void wait(i64 index) const {
    while (index == 6 && !*go_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::shared_ptr<std::atomic<bool>> go_;
};

TEST(Loader, AReadThatHangsIsNamedByItsFile) {
  for (const bool in_fetch : {true, false}) {
    const auto go = std::make_shared<std::atomic<bool>>(false);
    const auto watched = std::make_shared<Hanging>(go, in_fetch);
    const std::weak_ptr<const Dataset> alive = watched;
    {
      LoaderOptions o = options_for(1, 2, 16);
      o.sampler.shuffle = false;
      o.read_limit = 0.2;
      Loader loader(watched, o);
      try {
        for (int i = 0; i < 5; ++i) {
          loader.release(loader.next(2));
        }
        FAIL() << "no error";
      } catch (const StalledError& e) {
        EXPECT_NE(std::string(e.what()).find("position 6 (file-6)"), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("loader.read_limit"), std::string::npos) << e.what();
      }
      const auto activities = loader.activities();
      ASSERT_EQ(activities.size(), 1u);
      EXPECT_EQ(activities[0].stage, in_fetch ? "read" : "decode");
      EXPECT_EQ(activities[0].sample, 6);
      EXPECT_EQ(activities[0].file, "file-6");
      EXPECT_THROW(loader.rewind(0), Error);  // not even rewinding waits for ever
    }
    *go = true;  // the thread that hung comes back after the loader is gone
  }
}

TEST(Loader, MisuseIsRefused) {
  LoaderOptions o = options_for(1, 4, 16);
  o.workers = 2;
  Loader loader(std::make_shared<Counting>(100), o);
  const Batch a = loader.next(8);
  const Batch b = loader.next(8);
  EXPECT_THROW((void)loader.next(1), Error);  // the ring is full of what is held
  EXPECT_THROW(loader.release(b), Error);     // out of order
  EXPECT_THROW(loader.rewind(0), Error);
  loader.release(a);
  EXPECT_THROW(loader.release(a), Error);  // twice
  const Batch c = loader.next(8);
  EXPECT_EQ(c.position, 16);
  loader.release(b);
  loader.release(c);
  EXPECT_THROW(loader.rewind(-1), Error);
  EXPECT_THROW((void)loader.next(0), Error);
  loader.rewind(3);
  EXPECT_EQ(loader.next(1).position, 3);
  EXPECT_THROW(Loader(std::make_shared<Counting>(0), o), DataError);
}

TEST(Loader, ASampleLargerThanTheRingNamesTheKey) {
  const LoaderOptions o = options_for(1, 2, 1);
  try {
    const Loader loader(std::make_shared<Counting>(10), o);
    FAIL() << "no error";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("loader.max_bytes"), std::string::npos);
  }
  LoaderOptions huge = options_for(1, 2, 1);
  huge.max_bytes = i64{1} << 50;
  EXPECT_THROW(Loader(std::make_shared<Counting>(10, false, 1 << 20), huge), ConfigError);
}

TEST(Loader, HugeSettingsAreTakenAsTheLargestPossible) {
  LoaderOptions o = options_for(1, 1 << 30, 64);
  o.depth = 1 << 30;
  o.io_concurrency = -5;
  o.workers = -3;
  Loader loader(std::make_shared<Counting>(100, true), o);
  EXPECT_EQ(loader.batch(), 32);
  EXPECT_EQ(loader.workers(), 0);
  EXPECT_EQ(loader.io_concurrency(), 1);
  loader.set_workers(1 << 30);
  EXPECT_EQ(loader.workers(), 8);
  EXPECT_EQ(loader.next(1 << 30).count, 32);
}

}  // namespace
}  // namespace penstock::data
