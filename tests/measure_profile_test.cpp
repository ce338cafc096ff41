// The per-op profile and the trace file, fed by real ops and by hand.
#include "framework/measure/profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "framework/core/check.h"
#include "framework/core/format.h"
#include "framework/core/tensor.h"
#include "framework/measure/clock.h"
#include "framework/measure/nvtx.h"
#include "framework/measure/text_file.h"
#include "framework/measure/trace_file.h"

namespace penstock::measure {
namespace {

void busy(double seconds) {
  for (const double end = monotonic_seconds() + seconds; monotonic_seconds() < end;) {
  }
}

// An op that takes `seconds` at least and moves `bytes`.
void op(const char* name, trace::Phase phase, double seconds, double bytes, double flops) {
  const trace::Op range(name, phase);
  ledger::bytes(MemoryClass::kActivations, bytes / 2, bytes / 2);
  ledger::kernel({}, {}, flops);
  busy(seconds);
}

void step() {
  op("big", trace::Phase::kForward, 4e-3, 1e6, 1e7);
  {
    const trace::Op block("block", trace::Phase::kForward);  // nested ops are one row
    op("inner", trace::Phase::kForward, 1e-3, 2e3, 0);
  }
  op("big", trace::Phase::kBackward, 2e-3, 3e6, 2e7);
}

const ProfileRow* find(const Profile& p, const std::string& name, trace::Phase phase) {
  for (const ProfileRow& r : p.rows) {
    if (r.op == name && r.phase == phase) {
      return &r;
    }
  }
  return nullptr;
}

Profile profiled(int steps, const ProfileCeilings& ceilings = {}) {
  Profiler profiler(false);
  step();  // before start: not heard
  profiler.start();
  step();  // outside of a step: not counted
  for (int i = 0; i < steps; ++i) {
    profiler.begin_step();
    step();
    ledger::bytes(MemoryClass::kBatch, 64, 0);
    profiler.end_step();
  }
  profiler.copied("input to device", 5e5, 1e-3);
  profiler.stop();
  step();
  return profiler.result(ceilings);
}

TEST(Profile, CountsCallsBytesAndFlopsOfEachOpAndPhase) {
  const Profile p = profiled(3, {.bytes_per_second = 1e10, .flops_per_second = 1e12});
  EXPECT_EQ(p.steps, 3);
  const ProfileRow* forward = find(p, "big", trace::Phase::kForward);
  const ProfileRow* backward = find(p, "big", trace::Phase::kBackward);
  const ProfileRow* block = find(p, "block", trace::Phase::kForward);
  const ProfileRow* outside = find(p, "(outside of ops)", trace::Phase::kOther);
  ASSERT_TRUE(forward && backward && block && outside);
  EXPECT_EQ(find(p, "inner", trace::Phase::kForward), nullptr);
  EXPECT_EQ(forward->calls, 3);
  EXPECT_EQ(forward->bytes, 3e6);
  EXPECT_EQ(forward->flops, 3e7);
  EXPECT_EQ(forward->kernels, 3);
  EXPECT_EQ(backward->bytes, 9e6);
  EXPECT_EQ(block->bytes, 6e3);
  EXPECT_EQ(outside->bytes, 3 * 64);
  EXPECT_FALSE(outside->bytes_per_second);  // no time, no rate
  EXPECT_GE(forward->seconds, 3 * 4e-3);
  EXPECT_GE(backward->seconds, 3 * 2e-3);
  EXPECT_GE(p.wall, p.kernel_seconds);
  EXPECT_DOUBLE_EQ(*forward->bytes_per_second, forward->bytes / forward->seconds);
  EXPECT_DOUBLE_EQ(*forward->share_of_bandwidth, *forward->bytes_per_second / 1e10);
  EXPECT_DOUBLE_EQ(*forward->share_of_flops, forward->flops / forward->seconds / 1e12);
  const ProfileRow* copy = find(p, "input to device", trace::Phase::kInput);
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->copy);
  EXPECT_FALSE(copy->share_of_bandwidth);  // the bus limits it, not DRAM
  double shares = 0;
  for (const ProfileRow& r : p.rows) {
    shares += r.share;
  }
  EXPECT_NEAR(shares, 1, 1e-9);
}

TEST(Profile, SortsByEachColumn) {
  Profile p = profiled(1);
  EXPECT_GE(p.rows[0].seconds, p.rows[1].seconds);
  p.sort(ProfileSort::kBytes);
  EXPECT_EQ(p.rows[0].op, "big");
  EXPECT_EQ(p.rows[0].phase, trace::Phase::kBackward);
  p.sort(ProfileSort::kName);
  EXPECT_EQ(p.rows[0].op, "(outside of ops)");
  for (const char* name : {"time", "calls", "bytes", "rate", "flops", "name"}) {
    ASSERT_TRUE(profile_sort_named(name));
    p.sort(*profile_sort_named(name));
  }
  EXPECT_FALSE(profile_sort_named("size"));
}

TEST(Profile, TheTableEndsWithTheRest) {
  Profile p{.steps = 2, .wall = 1};
  for (int i = 0; i < 50; ++i) {
    p.rows.push_back({.op = format("op{}", i), .calls = 4, .seconds = 0.01, .share = 0.02});
  }
  const TextTable t = p.table(10);
  ASSERT_EQ(t.rows.size(), 11u);
  EXPECT_EQ(t.rows[0][2], "2");  // calls a step
  EXPECT_EQ(t.rows[10][0], "40 more");
  EXPECT_EQ(t.rows[10][4], "80.0 %");
  EXPECT_EQ(p.table(50).rows.size(), 50u);
}

TEST(Profile, JsonHoldsEveryRowAndNullForWhatIsUnknown) {
  Profile p = profiled(1);
  p.rows[0].op = "a\"b\n</script>\xff";
  const auto json = nlohmann::json::parse(p.json());
  ASSERT_EQ(json["rows"].size(), p.rows.size());
  EXPECT_EQ(json["steps"], 1);
  EXPECT_TRUE(json["rows"][0]["share_of_bandwidth"].is_null());
  EXPECT_EQ(json["rows"][0]["calls"], p.rows[0].calls);
  EXPECT_EQ(p.json().find("</script>"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(Profile{}.json())["rows"].size(), 0u);
}

TEST(Profile, WrongOrderIsAnErrorAndStopIsHarmless) {
  Profiler profiler(false);
  EXPECT_THROW(profiler.begin_step(), Error);
  EXPECT_THROW(profiler.end_step(), Error);
  profiler.start();
  EXPECT_THROW(profiler.start(), Error);
  EXPECT_THROW(profiler.result(), Error);
  profiler.stop();
  profiler.stop();
  EXPECT_EQ(profiler.result().summary(), "no step was profiled");
  EXPECT_EQ(trace::listener(), nullptr);
}

// ---- trace.json --------------------------------------------------------------------------------

nlohmann::json events_of(const TraceFile& file) {
  return nlohmann::json::parse(file.text())["traceEvents"];
}

int count(const nlohmann::json& events, const std::string& phase, const std::string& name) {
  int n = 0;
  for (const auto& e : events) {
    n += e["ph"] == phase && (name.empty() || e["name"] == name) ? 1 : 0;
  }
  return n;
}

TEST(TraceFile, KeepsAWindowOfStepsWithPhasesAndOps) {
  TraceFile file({.first_step = 2, .steps = 2});
  {
    const TraceListener listener(file);
    for (i64 s = 0; s < 6; ++s) {
      EXPECT_EQ(file.over(), s >= 4);
      file.begin_step(s);
      EXPECT_EQ(file.inside(), s == 2 || s == 3);
      step();
      file.range(Track::kLoader, "decode", monotonic_seconds() - 1e-4, monotonic_seconds());
      file.end_step();
    }
  }
  EXPECT_EQ(trace::listener(), nullptr);
  const auto events = events_of(file);
  EXPECT_EQ(count(events, "X", "step 2"), 1);
  EXPECT_EQ(count(events, "X", "step 3"), 1);
  EXPECT_EQ(count(events, "X", "step 4"), 0);
  EXPECT_EQ(count(events, "X", "big"), 4);
  EXPECT_EQ(count(events, "X", "block"), 2);
  EXPECT_EQ(count(events, "X", "forward"), 2);
  EXPECT_EQ(count(events, "X", "backward"), 2);
  EXPECT_EQ(count(events, "X", "decode"), 2);
  // Ops lie inside their step, phases span their ops.
  std::map<std::string, std::pair<double, double>> at;
  for (const auto& e : events) {
    if (e["ph"] == "X") {
      const double begin = e["ts"];
      at.try_emplace(e["name"], begin, begin + double(e["dur"]));
    }
  }
  const double rounding = 0.01;  // microseconds; times and durations are rounded apart
  EXPECT_GE(at["big"].first, at["step 2"].first - rounding);
  EXPECT_LE(at["big"].second, at["step 2"].second + rounding);
  EXPECT_LE(at["forward"].first, at["big"].first + rounding);
  EXPECT_GE(at["forward"].second, at["block"].second - rounding);
  EXPECT_EQ(file.dropped(), 0);
}

TEST(TraceFile, ListenersHearEachOther) {
  TraceFile file({.steps = 10});
  const TraceListener listener(file);
  Profiler profiler(false);
  profiler.start();
  file.begin_step(0);
  profiler.begin_step();
  step();
  profiler.end_step();
  file.end_step();
  profiler.stop();
  EXPECT_EQ(count(events_of(file), "X", "big"), 2);
  EXPECT_TRUE(find(profiler.result(), "big", trace::Phase::kForward));
  EXPECT_EQ(trace::listener(), &listener);
}

TEST(Nvtx, RangesGoOnTellingOthersAndRemoveThemselves) {
  TraceFile file({.steps = 10});
  const TraceListener listener(file);
  {
    const auto nvtx = nvtx_listener();
    EXPECT_EQ(nvtx != nullptr, nvtx_built());
    file.begin_step(0);
    step();
    file.end_step();
  }
  EXPECT_EQ(trace::listener(), &listener);
  EXPECT_EQ(count(events_of(file), "X", "big"), 2);
}

TEST(TraceFile, StaysUnderItsCapWhateverIsFed) {
  const i64 cap = 200000;
  TraceFile file({.steps = 1, .cap = cap});
  file.begin_step(0);
  const double now = monotonic_seconds();
  const std::string long_name(100000, '"');
  for (int i = 0; i < 30000; ++i) {
    file.range(Track::kOps, i % 100 == 0 ? long_name : "op", now, now + 1e-6, {{"key", long_name}});
    file.counter(format("counter {} {}", i % 3, i % 3 == 0 ? long_name : ""), now + i, i);
    file.decision("workers", now, {{"why", long_name}});
  }
  file.end_step();
  const std::string text = file.text();
  EXPECT_LE(i64(text.size()), cap);
  EXPECT_GT(i64(text.size()), cap / 4);
  EXPECT_GT(file.dropped(), 0);
  const auto json = nlohmann::json::parse(text);
  // Counters thin out but span the whole time.
  double last = 0;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] == "C") {
      last = std::max(last, double(e["ts"]));
    }
  }
  EXPECT_GT(last, 1e6 * 25000);
}

TEST(TraceFile, DecisionsAndCountersOutsideOfTheWindowAreKept) {
  TraceFile file({.first_step = 1000});
  const double now = monotonic_seconds();
  file.counter("DRAM GB/s", now, 2900);
  file.counter("DRAM GB/s", now + 1, std::numeric_limits<double>::quiet_NaN());
  file.decision("batch 64 to 128", now, {{"why", "<b>\x01\xff"}});
  file.range(Track::kOps, "op", now, now + 1);
  const auto events = events_of(file);
  EXPECT_EQ(count(events, "C", "DRAM GB/s"), 1);
  EXPECT_EQ(count(events, "i", "batch 64 to 128"), 1);
  EXPECT_EQ(count(events, "X", ""), 0);
}

TEST(TraceFile, IsWrittenWhole) {
  TraceFile file;
  const std::string path = ::testing::TempDir() + "penstock-trace-test.json";
  file.write(path);
  EXPECT_EQ(*read_whole_file(path, 1 << 20), file.text());
  std::remove(path.c_str());
  EXPECT_THROW(file.write("/nonexistent/folder/trace.json"), StorageError);
}

}  // namespace
}  // namespace penstock::measure
