// Verdicts: each guard and remedy by hand, then a confusion matrix over simulated machines whose
// true limit is found by running them again without each cause.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "framework/core/format.h"
#include "framework/measure/verdict.h"

namespace penstock::measure {
namespace {

// A healthy step of one second: kernels only, nothing near a ceiling.
Situation quiet() {
  Situation s;
  s.account = {.wall = 1, .kernels = 0.98, .busy = 0.98, .steps = 10, .samples = 640};
  s.account.other[std::size_t(OtherKind::kLog)] = 0.02;
  s.dram = Bandwidth{.bytes_per_second = 1e12, .share_of_achievable = 0.25, .source = Source::kGpm};
  s.flops_per_second = 2e14;
  s.flops_ceiling = 7e14;
  s.elasticity = 0.1;
  s.fixed_bytes_share = 0.1;
  s.mean_kernel_seconds = 50e-6;
  s.settings = {
      .cuda = true, .batch = 64, .workers = 4, .precision = Precision::kBf16, .capture = true};
  return s;
}

std::set<std::string> keys_of(const Verdict& v) {
  std::set<std::string> keys;
  for (const Remedy& r : v.remedies) {
    keys.insert(r.key);
  }
  return keys;
}

TEST(Verdict, NothingMeasuredNothingSaid) {
  EXPECT_FALSE(judge(Situation{}));
  Situation only_time;
  only_time.account = {.wall = 1, .kernels = 1, .steps = 1};
  const auto v = judge(only_time);
  ASSERT_TRUE(v);
  EXPECT_EQ(v->limit, Limit::kMixed);
  for (const Number& n : v->evidence) {
    EXPECT_EQ(n.name.find("DRAM"), std::string::npos);
    EXPECT_EQ(n.name.find("arithmetic"), std::string::npos);
  }
}

TEST(Verdict, WaitingForDataNamesTheCause) {
  Situation s = quiet();
  s.account.kernels = 0.68;
  s.account.data_wait = 0.3;
  s.account.wait = {.fetch = 0.02, .decode = 0.25, .order = 0.03};
  s.settings.wanted_workers = 11;
  s.settings.most_workers = 14;
  const Verdict v = *judge(s);
  EXPECT_EQ(v.name(), "input-bound (decode)");
  EXPECT_NEAR(v.gain, 1 / 0.7 - 1, 1e-9);
  ASSERT_FALSE(v.remedies.empty());
  EXPECT_EQ(v.remedies[0].key, "loader.workers");
  EXPECT_EQ(v.remedies[0].value, "11");
  // Kernels are the larger part of the time, but the loader sets the pace: faster kernels would
  // only wait longer.
  EXPECT_EQ(v.alternatives[0].part, "waiting for data");
  for (const Counterfactual& c : v.alternatives) {
    const bool of_the_step = c.part == "memory traffic" || c.part == "arithmetic";
    EXPECT_EQ(c.gain == 0, of_the_step) << c.part;
  }
  EXPECT_EQ(keys_of(v).count("train.batch"), 0u);  // a larger batch will not help
  s.account.wait = {.fetch = 0.3};
  s.settings.data_set_bytes = i64(1) << 30;
  s.settings.host_memory_room = i64(8) << 30;
  const Verdict fetch = *judge(s);
  EXPECT_EQ(fetch.name(), "input-bound (fetch)");
  EXPECT_EQ(fetch.remedies[0].key, "loader.io_concurrency");
  EXPECT_EQ(keys_of(fetch).count("data.cache_bytes"), 1u);
  s.account.wait = {.order = 0.3};
  s.settings.depth = 2;
  s.settings.wanted_depth = 7;
  EXPECT_EQ(judge(s)->remedies[0].key, "loader.depth");
  EXPECT_EQ(judge(s)->remedies[0].value, "7");
  s.account.wait = {.scheduling = 0.3};
  EXPECT_EQ(judge(s)->remedies[0].key, "data.augment");
  // No cores left for more workers: nothing is suggested that cannot be had.
  s.account.wait = {.queueing = 0.3};
  s.settings.most_workers = 4;
  EXPECT_EQ(keys_of(*judge(s)).count("loader.workers"), 0u);
}

TEST(Verdict, ASyntheticTwinShowsAnInputLimitTheWaitDoesNot) {
  Situation s = quiet();
  s.end_to_end_per_synthetic = 0.8;
  const Verdict v = *judge(s);
  EXPECT_EQ(v.limit, Limit::kInput);
  EXPECT_NEAR(v.gain, 0.25, 1e-9);
}

TEST(Verdict, ExposedCopiesAndMemcpyShare) {
  Situation s = quiet();
  s.account.kernels = 0.83;
  s.account.h2d_exposed = s.account.memcpy_exposed = s.account.memcpy_total = 0.15;
  const Verdict v = *judge(s);
  EXPECT_EQ(v.limit, Limit::kTransfer);
  EXPECT_NEAR(v.gain, 1 / 0.85 - 1, 1e-9);
  EXPECT_EQ(v.remedies[0].key, "data.transfer");
  EXPECT_LT(*v.remedies[0].gain, v.gain);  // uint8 leaves a quarter
  s.settings.transfer_uint8 = true;
  EXPECT_EQ(judge(s)->remedies[0].key, "data.augment");
  Situation hidden = quiet();
  hidden.account.memcpy_total = 0.4;  // over 30 % of device time, nothing exposed
  EXPECT_EQ(judge(hidden)->limit, Limit::kTransfer);
  EXPECT_NEAR(judge(hidden)->gain, 0, 1e-9);
  hidden.settings.cuda = false;
  EXPECT_EQ(judge(hidden)->limit, Limit::kMixed);  // a CPU copies nothing
}

TEST(Verdict, LaunchGapsNeedShortKernelsAndConstantTime) {
  Situation s = quiet();
  s.account.kernels = 0.58;
  s.account.launch_gap = 0.4;
  s.mean_kernel_seconds = 3e-6;
  s.elasticity = 0.95;
  s.settings.capture = false;
  s.largest_batch = 4096;
  s.knee = 1024;
  const Verdict v = *judge(s);
  EXPECT_EQ(v.limit, Limit::kLaunch);
  EXPECT_NEAR(v.gain, 1 / 0.6 - 1, 1e-9);
  EXPECT_EQ(v.remedies[0].key, "train.capture");
  EXPECT_EQ(v.remedies[1].key, "train.batch");
  EXPECT_EQ(v.remedies[1].value, "1024");
  s.mean_kernel_seconds = 100e-6;
  EXPECT_NE(judge(s)->limit, Limit::kLaunch);
  s.mean_kernel_seconds = 3e-6;
  s.elasticity = 0.1;
  EXPECT_NE(judge(s)->limit, Limit::kLaunch);
}

TEST(Verdict, MemoryBoundFixedAndStreaming) {
  Situation s = quiet();
  s.dram->share_of_achievable = 0.9;
  s.flops_per_second = 0.1 * *s.flops_ceiling;
  s.fixed_bytes_share = 0.8;
  s.elasticity = 0.6;
  s.knee = 512;
  s.largest_batch = 2048;
  const Verdict fixed = *judge(s);
  EXPECT_EQ(fixed.name(), "memory-bandwidth-bound (fixed)");
  EXPECT_NEAR(fixed.gain, 1 / (1 - 0.88) - 1, 1e-9);
  EXPECT_EQ(fixed.remedies[0].key, "train.batch");
  EXPECT_EQ(fixed.remedies[0].value, "512");
  // T(512) / T(64) on t = a + b B with B_half = 96.
  EXPECT_NEAR(*fixed.remedies[0].gain, (512 / (512 + 96.0)) / (64 / (64 + 96.0)) - 1, 1e-9);
  s.fixed_bytes_share = 0.05;
  s.settings.precision = Precision::kF32;
  const Verdict streaming = *judge(s);
  EXPECT_EQ(streaming.name(), "memory-bandwidth-bound (streaming)");
  EXPECT_EQ(keys_of(streaming).count("train.batch"), 0u);
  EXPECT_EQ(streaming.remedies[0].key, "train.precision");
}

TEST(Verdict, ComputeBoundOnlyWhenTheBatchIsLargeEnough) {
  Situation s = quiet();
  s.flops_per_second = 0.8 * *s.flops_ceiling;
  EXPECT_EQ(judge(s)->limit, Limit::kCompute);
  s.elasticity = 0.4;
  EXPECT_NE(judge(s)->limit, Limit::kCompute);
}

TEST(Verdict, CapacityBoundReplacesAdviceThatMemoryForbids) {
  Situation s = quiet();
  s.dram->share_of_achievable = 0.85;
  s.fixed_bytes_share = 0.9;
  s.elasticity = 0.6;
  s.largest_batch = 72;
  s.knee = 700;
  const Verdict v = *judge(s);
  EXPECT_EQ(v.limit, Limit::kCapacity);
  EXPECT_EQ(v.remedies[0].key, "model.recompute");
  EXPECT_EQ(keys_of(v).count("train.batch"), 0u);
  EXPECT_GT(v.gain, 0.5);
  s.largest_batch = 1000;  // there is room after all
  EXPECT_EQ(judge(s)->limit, Limit::kMemory);
}

TEST(Verdict, MixedNamesTheTwoLargestTerms) {
  const Verdict v = *judge(quiet());
  EXPECT_EQ(v.limit, Limit::kMixed);
  EXPECT_NE(v.headline.find(v.alternatives[0].part), std::string::npos);
  EXPECT_NE(v.headline.find(v.alternatives[1].part), std::string::npos);
}

TEST(Verdict, UnstableMeasurementsGiveTheReasonAndNoRemedy) {
  Situation s = quiet();
  s.account.data_wait = 0.5;
  s.account.kernels = 0.48;
  s.clock_drop = 0.11;
  EXPECT_EQ(judge(s)->limit, Limit::kUnstable);
  EXPECT_NE(judge(s)->headline.find("clock fell by 11 %"), std::string::npos);
  EXPECT_TRUE(judge(s)->remedies.empty());
  s.clock_drop = 0.01;
  EXPECT_EQ(judge(s)->limit, Limit::kInput);
  s.other_processes = 1;
  EXPECT_EQ(judge(s)->limit, Limit::kUnstable);
  s.other_processes = 0;
  s.confidence = 0.08;
  EXPECT_EQ(judge(s)->limit, Limit::kUnstable);
}

TEST(Verdict, NamesAndWordsAreDistinct) {
  std::set<std::string> names;
  std::set<std::string> words;
  for (std::size_t i = 0; i < kLimits; ++i) {
    names.insert(name_of(Limit(i)));
    words.insert(word_of(Limit(i)));
  }
  EXPECT_EQ(names.size(), kLimits);
  EXPECT_EQ(words.size(), kLimits);
}

// ---- simulated machines ------------------------------------------------------------------------

// A training step on a machine with given rates; what would be measured follows from overlap rules,
// not from the verdict's formulas.
struct Simulated {
  bool cuda = true;
  double batch = 64;
  // Loader: seconds of supply per sample at its present workers, and what it spends them on.
  double loader = 0;
  WaitSplit cause{.decode = 1};
  // Copies.
  double copy_bytes = 0;  // a sample
  double bus = 50e9;      // bytes a second
  bool overlapped = true;
  // Kernels: an optimizer, streaming layers, matrix products.
  double kernels_each = 20;   // launches of each group
  double launch = 4e-6;       // host seconds a launch
  double shortest = 2e-6;     // device seconds a launch at least
  double fixed_bytes = 0;     // a step
  double streamed_bytes = 0;  // a sample
  double flops = 0;           // a sample
  double matmul_bytes = 0;    // a sample
  double bandwidth = 4.3e12;
  double peak = 7e14;
  double most_batch = 1e9;  // what fits

  struct Step {
    double kernels, gap, exposed, copy, wait, wall, bytes, flops;
  };
  Step step(double b, bool with_data = true) const {
    const auto kernel = [&](double bytes, double arithmetic) {
      return std::max({bytes / bandwidth, arithmetic / peak, cuda ? kernels_each * shortest : 0.0});
    };
    Step s{};
    s.bytes = fixed_bytes + (streamed_bytes + matmul_bytes) * b;
    s.flops = flops * b;
    s.kernels =
        kernel(fixed_bytes, 0) + kernel(streamed_bytes * b, 0) + kernel(matmul_bytes * b, s.flops);
    const double host = cuda ? 3 * kernels_each * launch : 0;
    const double pair = std::max(s.kernels, host);
    s.gap = pair - s.kernels;
    s.copy = cuda ? copy_bytes * b / bus : 0;
    s.exposed = overlapped ? std::max(0.0, s.copy - pair) : s.copy;
    s.wait = with_data ? std::max(0.0, loader * b - pair - s.exposed) : 0;
    s.wall = pair + s.exposed + s.wait;
    return s;
  }
  double throughput(double b) const { return b / step(b).wall; }
  double elasticity() const {
    const double up = step(batch * 1.1, false).wall;
    const double down = step(batch / 1.1, false).wall;
    return std::clamp(1 - std::log(up / down) / std::log(1.21), 0.0, 1.0);
  }
  double knee() const {
    double best = 0;
    for (double b = 1; b <= 1 << 20; b *= 2) {
      best = std::max(best, b / step(b, false).wall);
    }
    double b = 1;
    while (b / step(b, false).wall < 0.95 * best) {
      b *= 1.1;
    }
    return b;
  }

  Situation measured(std::mt19937& random, double noise) const {
    const auto about = [&](double value) {
      return value * (1 + noise * std::normal_distribution<double>()(random));
    };
    const Step s = step(batch);
    Situation m;
    StepAccount& a = m.account;
    a.kernels = about(s.kernels);
    a.launch_gap = about(s.gap);
    a.h2d_exposed = a.memcpy_exposed = about(s.exposed);
    a.memcpy_total = about(s.copy);
    a.data_wait = about(s.wait);
    a.wait = cause.scaled(a.data_wait / std::max(cause.total(), 1e-9));
    a.other[std::size_t(OtherKind::kLog)] = 0.005 * s.wall;
    a.wall = a.accounted();
    a.steps = 100;
    m.dram = Bandwidth{.bytes_per_second = about(s.bytes / s.wall),
                       .source = cuda ? Source::kGpm : Source::kLedger};
    m.dram->share_of_achievable = m.dram->bytes_per_second / bandwidth;
    m.flops_per_second = about(s.flops / s.wall);
    m.flops_ceiling = peak;
    m.elasticity = std::clamp(
        elasticity() + 0.5 * noise * std::normal_distribution<double>()(random), 0.0, 0.999);
    m.fixed_bytes_share = fixed_bytes / s.bytes;
    if (cuda) {
      m.mean_kernel_seconds = about(s.kernels / (3 * kernels_each));
    }
    m.largest_batch = i64(std::min(most_batch, 1e9));
    m.knee = i64(std::min(knee(), 1e9));
    m.confidence = 0.01;
    m.clock_drop = 0.005;
    m.other_processes = 0;
    m.settings = {.cuda = cuda, .batch = i64(batch), .workers = 4, .precision = Precision::kBf16};
    return m;
  }

  // The truth: the cause without which this machine, run again, is fastest, and by what margin over
  // the next. A cause counts only where it takes its part of TUNING 6.
  struct Truth {
    Limit limit = Limit::kMixed;
    bool clear = true;
  };
  Truth truth() const {
    const Step s = step(batch);
    const double e = elasticity();
    const double base = throughput(batch);
    const auto without = [&](const std::function<void(Simulated&)>& change) {
      Simulated copy = *this;
      change(copy);
      return copy.throughput(batch) / base - 1;
    };
    Truth t;
    std::vector<std::pair<double, Limit>> gains;
    // `value` beyond `guard` admits a cause; a value within a tenth of its guard is no clear case.
    const auto clear_of = [&](double value, double guard) {
      t.clear = t.clear && std::fabs(value / guard - 1) > 0.1;
      return value >= guard;
    };
    if (clear_of(s.wait / s.wall, 0.05)) {
      gains.emplace_back(without([](Simulated& m) { m.loader = 0; }), Limit::kInput);
    }
    if (cuda &&
        (clear_of(s.exposed / s.wall, 0.1) | clear_of(s.copy / (s.kernels + s.exposed), 0.3))) {
      gains.emplace_back(without([](Simulated& m) { m.bus = 1e18; }), Limit::kTransfer);
    }
    if (cuda && clear_of(s.gap / s.wall, 0.2) && !clear_of(s.kernels / (3 * kernels_each), 10e-6) &&
        clear_of(e, 0.5)) {
      gains.emplace_back(without([](Simulated& m) { m.launch = 0; }), Limit::kLaunch);
    }
    const bool capacity =
        clear_of(e, 0.2) && most_batch < 0.9 * knee() && batch > 0.85 * most_batch;
    const bool fixed = fixed_bytes > 0.5 * s.bytes;
    t.clear = t.clear && std::fabs(fixed_bytes / s.bytes - 0.5) > 0.05;
    if (clear_of(s.bytes / s.wall / bandwidth, 0.6) && !(fixed && capacity)) {
      gains.emplace_back(without([](Simulated& m) { m.bandwidth = 1e18; }), Limit::kMemory);
    }
    if (clear_of(s.flops / s.wall / peak, 0.6) && !clear_of(e, 0.2)) {
      gains.emplace_back(without([](Simulated& m) { m.peak = 1e24; }), Limit::kCompute);
    }
    if (capacity) {
      gains.emplace_back(throughput(knee()) / base - 1, Limit::kCapacity);
    }
    std::sort(gains.rbegin(), gains.rend());
    if (!gains.empty()) {
      t.limit = gains[0].second;
      t.clear = t.clear && (gains.size() == 1 || gains[0].first > 1.2 * gains[1].first);
    }
    return t;
  }
};

Simulated machine(std::mt19937& random, bool cuda) {
  const auto log_uniform = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(random));
  };
  Simulated m;
  m.cuda = cuda;
  m.batch = std::round(log_uniform(8, 1024));
  m.bandwidth = cuda ? log_uniform(3e11, 4.8e12) : log_uniform(1e10, 3e11);
  m.peak = cuda ? m.bandwidth * log_uniform(50, 250) : m.bandwidth * log_uniform(2, 30);
  m.kernels_each = std::round(log_uniform(5, 100));
  return m;
}

// A balanced step of `seconds` on that machine: no cause stands out.
void balance(Simulated& m, double seconds) {
  m.fixed_bytes = 0.1 * seconds * m.bandwidth;
  m.streamed_bytes = 0.4 * seconds * m.bandwidth / m.batch;
  m.flops = 0.5 * seconds * m.peak / m.batch;
  m.matmul_bytes = 0.02 * seconds * m.bandwidth / m.batch;
  m.launch = 0.05 * seconds / (3 * m.kernels_each);
  m.shortest = 0.002 * seconds / (3 * m.kernels_each);
  m.loader = 0.5 * seconds / m.batch;
  m.copy_bytes = 0.1 * seconds * m.bus / m.batch;
}

// Puts one cause into a balanced step.
void inject(Simulated& m, Limit cause, std::mt19937& random) {
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const double t = m.step(m.batch, false).wall;
  switch (cause) {
    case Limit::kInput:
      m.loader = t * uniform(3, 10) / m.batch;  // a sleep in the loader
      break;
    case Limit::kTransfer:  // fat pageable copies
      m.overlapped = false;
      m.copy_bytes = t * uniform(2, 6) * m.bus / m.batch;
      break;
    case Limit::kLaunch: {  // many tiny kernels
      m.kernels_each = 200;
      m.shortest = 2e-6;
      m.fixed_bytes = m.streamed_bytes = m.flops = m.matmul_bytes = 1;
      m.launch = m.shortest * uniform(2, 5);
      m.loader = 0;
      m.copy_bytes = 0;
      break;
    }
    case Limit::kMemory: {  // a large embedding's optimizer, or element-wise layers
      const double bytes = t * uniform(5, 20) * m.bandwidth;
      (uniform(0, 1) < 0.5 ? m.fixed_bytes : m.streamed_bytes) += bytes;
      if (m.streamed_bytes > bytes) {
        m.streamed_bytes /= m.batch;
      }
      break;
    }
    case Limit::kCompute: m.flops += t * uniform(8, 30) * m.peak / m.batch; break;
    case Limit::kCapacity:
      m.fixed_bytes += t * uniform(2, 6) * m.bandwidth;
      m.loader = 0;
      m.most_batch = m.batch;  // a capped arena
      break;
    default: break;
  }
}

using Matrix = std::map<std::pair<Limit, Limit>, int>;

void expect_right(const Matrix& matrix, const char* what) {
  int right = 0;
  int all = 0;
  std::string text;
  std::map<Limit, int> rows;
  for (const auto& [key, count] : matrix) {
    all += count;
    rows[key.first] += count;
    right += key.first == key.second ? count : 0;
    if (key.first != key.second) {
      text += format("  {} judged {}: {}\n", name_of(key.first), name_of(key.second), count);
    }
  }
  for (const auto& [truth, count] : rows) {
    const auto hit = matrix.find({truth, truth});
    const int hits = hit == matrix.end() ? 0 : hit->second;
    text += format("  {}: {} of {}\n", name_of(truth), hits, count);
    EXPECT_GE(hits, 0.95 * count) << what << ": " << name_of(truth) << "\n" << text;
  }
  EXPECT_GE(right, 0.95 * all) << what << "\n" << text;
  ::testing::Test::RecordProperty(what, format("{} of {}", right, all));
  std::printf("%s: %d of %d right\n%s", what, right, all, text.c_str());
}

void expect_known_keys(const Verdict& v) {
  const auto keys = remedy_keys();
  for (const Remedy& r : v.remedies) {
    EXPECT_NE(std::find(keys.begin(), keys.end(), r.key), keys.end()) << r.key;
    EXPECT_FALSE(r.value.empty());
    EXPECT_FALSE(r.why.empty());
  }
}

TEST(Verdict, InjectedCausesAreFound) {
  std::mt19937 random(1);
  Matrix matrix;
  for (const Limit cause : {Limit::kInput, Limit::kTransfer, Limit::kLaunch, Limit::kMemory,
                            Limit::kCompute, Limit::kCapacity, Limit::kUnstable}) {
    for (int i = 0; i < 400; ++i) {
      const bool cuda = cause == Limit::kTransfer || cause == Limit::kLaunch || i % 2 == 0;
      Simulated m = machine(random, cuda);
      balance(m, cuda ? 0.02 : 0.5);
      inject(m, cause, random);
      Situation s = m.measured(random, 0.02);
      if (cause == Limit::kUnstable) {
        (i % 3 == 0 ? s.clock_drop : s.confidence) = 0.07;
      }
      const auto v = judge(s);
      ASSERT_TRUE(v);
      ++matrix[{cause, v->limit}];
      expect_known_keys(*v);
    }
  }
  expect_right(matrix, "injected");
}

TEST(Verdict, RandomMachinesAreJudgedAsTheirRerunsShow) {
  std::mt19937 random(2);
  const auto log_uniform = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(random));
  };
  Matrix matrix;
  int clear = 0;
  int drawn = 0;
  while (clear < 3000 && drawn < 100000) {
    ++drawn;
    Simulated m = machine(random, drawn % 3 != 0);
    const double t = m.cuda ? log_uniform(3e-4, 0.2) : log_uniform(0.02, 2);
    m.fixed_bytes = t * m.bandwidth * log_uniform(0.01, 2);
    m.streamed_bytes = t * m.bandwidth * log_uniform(0.01, 2) / m.batch;
    m.flops = t * m.peak * log_uniform(0.01, 3) / m.batch;
    m.matmul_bytes = 0.05 * t * m.bandwidth / m.batch;
    m.launch = log_uniform(1e-6, 1e-5);
    m.loader = t * log_uniform(0.05, 6) / m.batch;
    m.copy_bytes = t * m.bus * log_uniform(0.01, 1.5) / m.batch;
    m.overlapped = drawn % 2 == 0;
    m.most_batch = m.batch * (drawn % 5 == 0 ? 1.0 : log_uniform(2, 1000));
    const Simulated::Truth truth = m.truth();
    if (!truth.clear) {
      continue;  // two causes of nearly the same size: either answer is right
    }
    ++clear;
    const auto v = judge(m.measured(random, 0.02));
    ASSERT_TRUE(v);
    ++matrix[{truth.limit, v->limit}];
    expect_known_keys(*v);
  }
  EXPECT_EQ(clear, 3000);
  std::printf("%d of %d machines have one clear cause\n", clear, drawn);
  expect_right(matrix, "random");
}

}  // namespace
}  // namespace penstock::measure
