// The bandwidth meter against a fake management library on a virtual clock.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>

#include "fake_nvml/fake_nvml.h"
#include "framework/core/ledger.h"
#include "framework/core/log.h"
#include "framework/measure/clock.h"
#include "framework/measure/meter.h"

namespace {

thread_local long t_allocations = 0;

}  // namespace

// Counts every allocation of the process, the library's included.
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++t_allocations;
  if (void* p = std::malloc(size == 0 ? 1 : size)) {
    return p;
  }
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept {
  std::free(p);
}
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace penstock::measure {
namespace {

constexpr double kPeak = 4.8e12;
constexpr double kTriad = 4.3e12;

// A fake library loaded by the test too, so that its device keeps its state between opens.
struct Fake {
  explicit Fake(const char* path, const char* mode = nullptr) : path(path) {
    if (mode == nullptr) {
      unsetenv("FAKE_NVML");
    } else {
      setenv("FAKE_NVML", mode, 1);
    }
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle, nullptr) << dlerror();
    device = reinterpret_cast<FakeDevice* (*)()>(dlsym(handle, "fake_nvml_device"))();
    advance = reinterpret_cast<void (*)(double)>(dlsym(handle, "fake_nvml_advance"));
    device->lost = false;
    device->dram_percent = 0;
    device->sm_clock_mhz = 1980;
    device->throttle = 0;
    device->processes = 1;
    // Idle until whole windows and the counters' refresh begin together.
    advance(std::ceil(device->now) + 1 - device->now);
  }
  MeterOptions options() const {
    return {.pci_bus_id = "0000:1b:00.0",
            .theoretical = kPeak,
            .achievable = kTriad,
            .nvml_library = path};
  }
  // Moves time on in steps, sampling at the end of each.
  void run(BandwidthMeter& meter, double seconds, double step = 0.2) {
    for (double done = 0; done < seconds - 1e-9; done += step) {
      advance(step);
      meter.tick(device->now);
    }
  }
  const char* path;
  FakeDevice* device = nullptr;
  void (*advance)(double) = nullptr;
};

// The log lines about bandwidth written while one lives.
class Lines {
 public:
  Lines()
      : path_(std::filesystem::temp_directory_path() / ("meter_log_" + std::to_string(getpid()))) {
    std::filesystem::remove(path_);
    log::set_file(path_);
  }
  ~Lines() {
    log::set_file("");
    std::filesystem::remove(path_);
  }
  std::vector<std::string> read() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      if (line.find("bandwidth: ") != std::string::npos) {
        lines.push_back(line);
      }
    }
    return lines;
  }

 private:
  std::filesystem::path path_;
};

void move_bytes(double bytes) {
  ledger::bytes(MemoryClass::kActivations, bytes, 0);
}

TEST(Meter, CountersGiveTheTrafficAsShareOfPeak) {
  Fake fake(FAKE_NVML);
  BandwidthMeter meter(fake.options());
  meter.tick(fake.device->now);
  EXPECT_EQ(meter.source(), Source::kNone);  // one sample is no value
  EXPECT_FALSE(meter.latest(fake.device->now));
  fake.device->dram_percent = 50;
  fake.run(meter, 1.0);
  EXPECT_EQ(meter.source(), Source::kGpm);
  const auto b = meter.latest(fake.device->now + 0.05);
  ASSERT_TRUE(b);
  EXPECT_EQ(b->source, Source::kGpm);
  EXPECT_NEAR(b->bytes_per_second, 0.5 * kPeak, 1e-6 * kPeak);
  EXPECT_NEAR(*b->share_of_theoretical, 0.5, 1e-6);
  EXPECT_NEAR(*b->share_of_achievable, 0.5 * kPeak / kTriad, 1e-6);
  EXPECT_NEAR(b->window_ms, 200, 1e-3);
  EXPECT_NEAR(b->age_ms, 50, 1e-3);
  EXPECT_EQ(meter.reason(), "");
}

TEST(Meter, PairsInsideOneRefreshAreNeverPublished) {
  Fake fake(FAKE_NVML);
  BandwidthMeter meter(fake.options());
  meter.tick(fake.device->now);
  fake.device->dram_percent = 80;
  fake.run(meter, 2.0, 0.03);  // far faster than the counters refresh
  const double now = fake.device->now;
  const auto b = meter.over(now - 2, now);
  ASSERT_TRUE(b);
  // Windows are 120 ms here, the counters' own 100 or 200: the mean is right, and no window is 0.
  EXPECT_NEAR(*b->share_of_theoretical, 0.8, 0.02);
  EXPECT_GT(meter.latest(now)->window_ms, 100);
  EXPECT_GT(*meter.latest(now)->share_of_theoretical, 0.5);
}

TEST(Meter, AnIntervalUsesOnlyWindowsInsideIt) {
  Fake fake(FAKE_NVML);
  BandwidthMeter meter(fake.options());
  meter.tick(fake.device->now);
  const double start = fake.device->now;
  fake.device->dram_percent = 90;
  fake.run(meter, 1.0);
  fake.device->dram_percent = 10;
  fake.run(meter, 1.0);
  EXPECT_NEAR(*meter.over(start + 1.0, start + 2.0)->share_of_theoretical, 0.1, 1e-6);
  EXPECT_NEAR(*meter.over(start, start + 2.0)->share_of_theoretical, 0.5, 1e-6);
  // A boundary inside a window leaves that window out.
  EXPECT_NEAR(*meter.over(start + 0.9, start + 2.0)->share_of_theoretical, 0.1, 1e-6);
  // 0.5 s that cut two windows hold one of 0.2 s: too little.
  EXPECT_FALSE(meter.over(start + 0.15, start + 0.55));
  EXPECT_TRUE(meter.over(start + 0.15, start + 0.65));
  EXPECT_FALSE(meter.over(start + 5, start + 6));
}

TEST(Meter, ReadingsStandBesideTheBandwidth) {
  Fake fake(FAKE_NVML);
  fake.device->throttle = 0x4 | 0x1;
  fake.device->processes = 3;
  BandwidthMeter meter(fake.options());
  meter.tick(fake.device->now);
  fake.run(meter, 0.6);
  const DeviceReadings r = meter.readings();
  EXPECT_EQ(r.gpu_util, 1.0);  // 100 % with 0 % DRAM: why both are shown
  EXPECT_EQ(r.memory_util, 0.4);
  EXPECT_EQ(*r.sm_share, 0.97);
  EXPECT_FALSE(r.tensor_share);  // this chip does not tell
  EXPECT_EQ(*r.pcie_received, 1000.0 * 1024 * 1024);
  EXPECT_EQ(*r.sm_clock_mhz, 1980);
  EXPECT_EQ(*r.throttle, "power limit");
  EXPECT_EQ(*r.other_processes, 2);
  const double now = fake.device->now;
  fake.device->sm_clock_mhz = 1500;
  fake.run(meter, 0.4);
  EXPECT_EQ(meter.clock_over(now - 0.3, now + 0.5)->lowest_mhz, 1500);
  EXPECT_EQ(meter.clock_over(now - 0.3, now + 0.5)->highest_mhz, 1980);
  EXPECT_FALSE(meter.clock_over(now + 10, now + 11));
}

// Every way of having no counters ends at the ledger, with one line that says why.
struct Refusal {
  const char* name;
  const char* library;
  const char* mode;
  const char* bus_id;
  const char* says;
};
class MeterRefused : public testing::TestWithParam<Refusal> {};

TEST_P(MeterRefused, FallsBackToTheLedgerAndSaysWhyOnce) {
  const Refusal& c = GetParam();
  Fake fake(FAKE_NVML, c.mode);
  Fake old(FAKE_NVML_OLD, c.mode);
  MeterOptions options = fake.options();
  options.nvml_library = c.library;
  options.pci_bus_id = c.bus_id;
  const Lines lines;
  BandwidthMeter meter(options);
  meter.tick(fake.device->now);
  for (int i = 0; i < 1000; ++i) {  // past several retries
    move_bytes(0.25 * kTriad * 0.2);
    fake.run(meter, 0.2);
  }
  ASSERT_EQ(lines.read().size(), 1u);
  EXPECT_NE(lines.read()[0].find(c.says), std::string::npos) << lines.read()[0];
  EXPECT_NE(meter.reason().find(c.says), std::string::npos) << meter.reason();
  EXPECT_EQ(meter.source(), Source::kLedger);
  const double now = fake.device->now;
  const auto b = meter.over(now - 1, now);
  ASSERT_TRUE(b);
  EXPECT_EQ(b->source, Source::kLedger);
  EXPECT_NEAR(*b->share_of_achievable, 0.25, 1e-6);
  EXPECT_FALSE(meter.readings().sm_clock_mhz);
  EXPECT_FALSE(meter.gpm_to_ledger(now - 1, now));
}

INSTANTIATE_TEST_SUITE_P(
    EachReason, MeterRefused,
    testing::Values(
        Refusal{"NoPermission", FAKE_NVML, "refuses", "0000:1b:00.0", "(NVML error 4)"},
        Refusal{"MetricRefused", FAKE_NVML, "metric", "0000:1b:00.0", "(NVML error 4)"},
        Refusal{"OldDriver", FAKE_NVML_OLD, "", "0000:1b:00.0", "has no GPM calls"},
        Refusal{"OldChip", FAKE_NVML, "unsupported", "0000:1b:00.0", "this GPU has no GPM"},
        Refusal{"Mig", FAKE_NVML, "mig", "0000:1b:00.0", "MIG is on"},
        Refusal{"OtherDevice", FAKE_NVML, "", "0000:ff:00.0", "no device at 0000:ff:00.0"},
        Refusal{"NoLibrary", "libno-such-library.so", "", "0000:1b:00.0", "does not load"}),
    [](const auto& refusal) { return std::string(refusal.param.name); });

TEST(Meter, AVanishedDeviceStepsDownAfterThreeFailuresAndComesBack) {
  Fake fake(FAKE_NVML, "vanishes");
  const Lines lines;
  BandwidthMeter meter(fake.options());
  meter.tick(fake.device->now);
  fake.device->dram_percent = 60;
  fake.run(meter, 1.0);
  EXPECT_EQ(meter.source(), Source::kGpm);
  fake.device->lost = true;
  move_bytes(1e9);
  fake.run(meter, 0.4);  // two failures are a hiccup
  EXPECT_EQ(meter.source(), Source::kGpm);
  EXPECT_TRUE(lines.read().empty());
  fake.run(meter, 0.2);
  EXPECT_EQ(meter.source(), Source::kLedger);
  ASSERT_EQ(lines.read().size(), 1u);
  EXPECT_NE(lines.read()[0].find("GPU is lost"), std::string::npos);
  EXPECT_EQ(fake.device->samples_alive, 0);
  EXPECT_EQ(fake.device->started, 0);

  fake.run(meter, 150);  // two retries in vain, in silence
  EXPECT_EQ(lines.read().size(), 1u);
  fake.device->lost = false;
  const int reads = fake.device->gpm_reads;
  fake.run(meter, 61);
  EXPECT_GT(fake.device->gpm_reads, reads);
  EXPECT_EQ(meter.source(), Source::kGpm);
  EXPECT_EQ(meter.reason(), "");
  ASSERT_EQ(lines.read().size(), 2u);
  EXPECT_NE(lines.read()[1].find("back"), std::string::npos);
  EXPECT_NEAR(*meter.latest(fake.device->now)->share_of_theoretical, 0.6, 1e-6);
}

TEST(Meter, AFailedReadLeavesNoHoleInTheMean) {
  Fake fake(FAKE_NVML, "vanishes");
  BandwidthMeter meter(fake.options());
  meter.tick(fake.device->now);
  fake.device->dram_percent = 70;
  fake.run(meter, 0.6);
  const double from = fake.device->now;
  fake.device->lost = true;
  fake.run(meter, 0.2);
  fake.device->lost = false;
  fake.run(meter, 0.4);
  EXPECT_NEAR(*meter.over(from, from + 0.6)->share_of_theoretical, 0.7, 1e-6);
  EXPECT_NEAR(meter.over(from, from + 0.6)->window_ms, 600, 1e-3);
}

TEST(Meter, RatioOfCountedToModelledBytes) {
  Fake fake(FAKE_NVML);
  BandwidthMeter meter(fake.options());
  fake.device->dram_percent = 50;
  move_bytes(1);
  meter.tick(fake.device->now);
  const double from = fake.device->now;
  for (int i = 0; i < 10; ++i) {
    move_bytes(0.2 * 0.4 * kPeak);  // the ledger sees 40 % where 50 % flow
    fake.run(meter, 0.2);
  }
  EXPECT_NEAR(*meter.gpm_to_ledger(from, fake.device->now), 1.25, 1e-6);
}

TEST(Meter, WithoutAnySourceThereIsNoValue) {
  // The ledger of this process has counted already in other tests, so ask before any window ends.
  BandwidthMeter meter(MeterOptions{});
  EXPECT_FALSE(meter.latest(0));
  EXPECT_FALSE(meter.over(0, 10));
  EXPECT_FALSE(meter.gpm_to_ledger(0, 10));
  EXPECT_FALSE(meter.readings().gpu_util);
  EXPECT_EQ(meter.source(), Source::kNone);
}

TEST(Meter, OnACpuTheLedgerIsTheSourceWithoutAWord) {
  const Lines lines;
  BandwidthMeter meter(MeterOptions{.achievable = 20e9});
  move_bytes(1);
  meter.tick(100);
  for (int i = 1; i <= 5; ++i) {
    move_bytes(1e9);
    meter.tick(100 + i);
  }
  const auto b = meter.latest(105.5);
  ASSERT_TRUE(b);
  EXPECT_EQ(b->source, Source::kLedger);
  EXPECT_NEAR(b->bytes_per_second, 1e9, 1);
  EXPECT_NEAR(*b->share_of_achievable, 0.05, 1e-9);
  EXPECT_FALSE(b->share_of_theoretical);  // nobody knows it
  EXPECT_TRUE(lines.read().empty());
}

TEST(Meter, SamplingDoesNotAllocate) {
  Fake fake(FAKE_NVML);
  BandwidthMeter meter(fake.options());
  meter.tick(fake.device->now);
  fake.run(meter, 1.0);
  const long before = t_allocations;
  fake.run(meter, 20.0);
  EXPECT_EQ(t_allocations, before);
  EXPECT_EQ(meter.source(), Source::kGpm);
}

TEST(Meter, ItsThreadSamplesUntilStopped) {
  MeterOptions options{.achievable = 20e9, .period = 3600, .live_period = 0.11};
  BandwidthMeter meter(options);
  move_bytes(1);
  meter.start();
  meter.start();  // a second call changes nothing
  meter.set_live(true);
  while (!meter.latest(monotonic_seconds())) {
    move_bytes(1e6);
    usleep(2000);
  }
  meter.stop();
  meter.stop();
  EXPECT_GT(meter.latest(monotonic_seconds())->bytes_per_second, 0);
}

}  // namespace
}  // namespace penstock::measure
