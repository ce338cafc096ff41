// Ceilings: the triad, the cache on disk, the datasheet table.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "framework/core/check.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/measure/ceilings.h"

namespace penstock::measure {
namespace {

namespace fs = std::filesystem;

class CeilingsCache : public testing::Test {
 protected:
  CeilingsCache() : folder_(fs::temp_directory_path() / ("ceilings_" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
  }
  ~CeilingsCache() override { fs::remove_all(folder_); }

  Ceilings ask(const std::string& key = "cpu: test") {
    return ceilings(key,
                    {.triad =
                         [this] {
                           ++measured_;
                           return 25e9;
                         },
                     .matmul = [](Precision p) -> std::optional<double> {
                       return p == Precision::kF32 ? std::optional(1e11) : std::nullopt;
                     }},
                    folder_.string());
  }
  fs::path file() const { return fs::directory_iterator(folder_)->path(); }
  void replace(const std::string& text) { std::ofstream(file()) << text; }
  std::string text() const {
    std::stringstream s;
    s << std::ifstream(file()).rdbuf();
    return s.str();
  }

  fs::path folder_;
  int measured_ = 0;
};

TEST_F(CeilingsCache, MeasuresOnceAndKeepsIt) {
  const Ceilings first = ask();
  const Ceilings second = ask();
  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(second.bytes_per_second, 25e9);
  EXPECT_EQ(second.flops_of(Precision::kF32), 1e11);
  EXPECT_FALSE(second.flops_of(Precision::kBf16));
  EXPECT_EQ(second.source, "measured");
  EXPECT_EQ(second.date, first.date);
  EXPECT_EQ(second.date.size(), 10u);
}

TEST_F(CeilingsCache, AnotherMachineMeasuresForItself) {
  ask("cpu: one");
  ask("cpu: two");
  EXPECT_EQ(measured_, 2);
  ask("cpu: one");
  EXPECT_EQ(measured_, 2);
}

TEST_F(CeilingsCache, WhatCannotBeTrustedIsMeasuredAgain) {
  ask();
  const std::string good = text();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = good;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"),
        with("25000000000", "-1"), with("25000000000.0", "\"fast\""), with("25000000000", "1e300"),
        with("cpu: test", "cpu: other"), with("\"format\": 1", "\"format\": 2"),
        std::string(1 << 17, ' ') + good, std::string(60000, '[')}) {
    replace(bad);
    const int before = measured_;
    EXPECT_EQ(ask().bytes_per_second, 25e9);
    EXPECT_EQ(measured_, before + 1) << bad.substr(0, 200);
  }
}

TEST_F(CeilingsCache, AFifoInItsPlaceDoesNotHang) {
  ask();
  const fs::path path = file();
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ask().bytes_per_second, 25e9);
  EXPECT_EQ(measured_, 2);
}

TEST_F(CeilingsCache, AFolderThatCannotBeMadeCostsOnlyTheMeasurement) {
  std::ofstream(folder_) << "a file";
  EXPECT_EQ(ask().bytes_per_second, 25e9);
  EXPECT_EQ(ask().bytes_per_second, 25e9);
  EXPECT_EQ(measured_, 2);
}

TEST_F(CeilingsCache, WritingLeavesNothingBesideTheFile) {
  ask();
  ask("cpu: two");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().extension(), ".json");
    ++files;
  }
  EXPECT_EQ(files, 2);
}

TEST(Ceilings, TriadMovesMemoryAndRestoresTheThreads) {
  const int threads = parallel::threads();
  const double rate = cpu_triad(1);
  EXPECT_GT(rate, 1e8);  // slower than any memory that is still built
  EXPECT_LT(rate, 1e12);
  EXPECT_EQ(parallel::threads(), threads);
  EXPECT_GT(last_level_cache(), 0);
}

TEST(Ceilings, KeysTellThreadCountsApart) {
  EXPECT_NE(cpu_key(1), cpu_key(2));
  EXPECT_NE(cpu_key(1).find(machine::cpu_name()), std::string::npos);
}

TEST(Datasheets, NamesAsDriversAndPeopleWriteThem) {
  const auto named = [](const char* name) {
    const DeviceSheet* sheet = find_device_sheet(name);
    return sheet == nullptr ? std::string("none") : std::string(sheet->name);
  };
  EXPECT_EQ(named("NVIDIA A100-SXM4-40GB"), "A100 40GB");
  EXPECT_EQ(named("NVIDIA A100-SXM4-80GB"), "A100 80GB");
  EXPECT_EQ(named("a100"), "none");  // which of the two?
  EXPECT_EQ(named("NVIDIA H100 80GB HBM3"), "H100 80GB");
  EXPECT_EQ(named("h100"), "H100 80GB");
  EXPECT_EQ(named("NVIDIA H200"), "H200");
  EXPECT_EQ(named("NVIDIA GeForce RTX 3090"), "RTX 3090");
  EXPECT_EQ(named("rtx4090"), "RTX 4090");
  EXPECT_EQ(named("NVIDIA L4"), "L4");
  EXPECT_EQ(named("Tesla T4"), "T4");
  EXPECT_EQ(named("NVIDIA L40S"), "none");
  EXPECT_EQ(named("NVIDIA RTX 4000"), "none");
  EXPECT_EQ(named(""), "none");
}

TEST(Datasheets, FiguresArePlausible) {
  for (const DeviceSheet& s : device_sheets()) {
    EXPECT_GE(s.bytes_per_second, 300e9) << s.name;
    EXPECT_LE(s.bytes_per_second, 5e12) << s.name;
    // The balance point of a tensor-core device: 100 to 500 FLOP a byte in 16 bits.
    const double ridge = s.flops[std::size_t(Precision::kF16)] / s.bytes_per_second;
    EXPECT_GT(ridge, 70) << s.name;
    EXPECT_LT(ridge, 500) << s.name;
    const Ceilings c = assumed_ceilings(s);
    EXPECT_LT(c.bytes_per_second, s.bytes_per_second);
    EXPECT_EQ(c.flops_of(Precision::kBf16).has_value(), std::string(s.name) != "T4");
  }
}

}  // namespace
}  // namespace penstock::measure
