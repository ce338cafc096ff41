// The report: what it holds, what it survives, and that it opens in a browser without a request.
#include "framework/measure/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "framework/core/format.h"
#include "framework/measure/text_file.h"

namespace penstock::measure {
namespace {

StepAccount account(double wall, double wait, i64 samples) {
  StepAccount a{.wall = wall,
                .data_wait = wait * wall,
                .wait = {.decode = wait * wall},
                .h2d_exposed = 0.02 * wall,
                .launch_gap = 0.03 * wall,
                .kernels = (0.94 - wait) * wall,
                .unaccounted = 0.002 * wall,
                .memcpy_total = 0.05 * wall,
                .memcpy_exposed = 0.02 * wall,
                .steps = 30,
                .samples = samples};
  a.other[std::size_t(OtherKind::kLog)] = 0.008 * wall;
  return a;
}

Bandwidth dram(double bytes_per_second) {
  return {.bytes_per_second = bytes_per_second,
          .share_of_theoretical = bytes_per_second / 4.8e12,
          .share_of_achievable = bytes_per_second / 4.3e12,
          .source = Source::kGpm,
          .window_ms = 1000};
}

Curve curve(const std::string& name, double scale) {
  Curve c{.name = name,
          .fit = CurveFit{.a = 0.004, .b = 8e-5 / scale},
          .half_batch = 50 * scale,
          .knee = 512,
          .knee_interval = {{384, 640}},
          .gain_knee = 256,
          .elastic_knee = 160,
          .memory_wall = 2048,
          .chosen = 512,
          .reason = "The next doubling was predicted to bring 2.1 %."};
  for (i64 batch = 8; batch <= 1024; batch *= 2) {
    const double rate = c.fit->samples_per_second(double(batch));
    c.points.push_back({.batch = batch,
                        .samples_per_second = rate,
                        .lower = 0.98 * rate,
                        .upper = 1.02 * rate,
                        .dram = dram(3e12 * rate / 13000),
                        .account = account(double(batch) / rate, 0.02, batch),
                        .memory_planned = 1e9 + 2e7 * double(batch),
                        .memory_measured = 1.001e9 + 2e7 * double(batch)});
    c.bound.emplace_back(batch, 1.4 * rate);
  }
  return c;
}

ReportData full(i64 intervals, i64 points) {
  ReportData d{.title = "resnet20-cifar10",
               .subtitle = "ResNet-20 on CIFAR-10, NVIDIA H200",
               .summary = {"Batch 512 is as fast as this GPU gets with this model.",
                           "The GPU waits 2 % of the time for data."},
               .facts = {{"command", "penstock train examples/resnet20.yaml --auto-batch"},
                         {"device", "NVIDIA H200, driver 580.159"}},
               .config = "model:\n  name: resnet20\ntrain:\n  batch: 512  # <chosen>\n",
               .curves = {curve("bf16", 1), curve("f32", 0.5)},
               .memory = {{"weights", 1.1e6, 1.1e6}, {"outside", std::nullopt, 5e8}},
               .roofline = Roofline{.bytes_per_second = 4.3e12,
                                    .flops_per_second = 7e14,
                                    .dots = {{"conv2d forward", 80, 1.2e14, 0.4},
                                             {"batch_norm forward", 1.5, 4e12, 0.3}}},
               .warnings = {"Locked memory is limited; copies are pageable."}};
  d.verdict = judge({.account = account(1, 0.3, 1000), .dram = dram(2e12)});
  for (i64 i = 0; i < intervals; ++i) {
    const double wait = 0.1 + 0.1 * std::sin(double(i) / 9);
    d.intervals.push_back({.begin = double(i),
                           .samples = 10000 * (i + 1),
                           .account = account(1, wait, 10000),
                           .dram = dram(2.5e12 * (1 - wait)),
                           .memory_used = 3e10,
                           .batch = i < intervals / 2 ? 256 : 512,
                           .workers = int(i % 8) + 1,
                           .depth = 4});
  }
  for (const char* name : {"training", "validation"}) {
    ReportSeries s{.plot = "loss", .name = name};
    for (i64 i = 0; i < points; ++i) {
      s.samples.push_back(512.0 * double(i));
      s.values.push_back(2.3 / (1 + 0.01 * double(i)) + 0.01 * std::sin(double(i)));
    }
    d.series.push_back(std::move(s));
  }
  for (i64 i = 0; i < std::min<i64>(intervals / 10, 5000); ++i) {
    d.decisions.push_back({.seconds = 10.0 * double(i),
                           .samples = 100000 * i,
                           .knob = "workers",
                           .from = "4",
                           .to = "6",
                           .why = "data wait 11 %, supply short",
                           .outcome = i % 2 == 0 ? "kept" : "reverted",
                           .expected_gain = 0.12,
                           .measured_gain = 0.11});
  }
  Profile profile{.steps = 4, .wall = 0.04, .kernel_seconds = 0.036, .clock = "CUDA events"};
  for (int i = 0; i < 60; ++i) {
    profile.rows.push_back({.op = format("op{}", i),
                            .phase = trace::Phase::kForward,
                            .calls = 8,
                            .seconds = 6e-4,
                            .share = 1 / 60.0,
                            .bytes = 1e9,
                            .flops = 1e9});
  }
  d.profile = profile;
  return d;
}

// The real check, by the tool that people run on their own reports.
void expect_opens(const std::string& page, const std::string& name) {
  if (std::system("python3 -c pass >/dev/null 2>&1") != 0) {  // NOLINT: no input goes into it
    GTEST_SKIP() << "no python3";
  }
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / format("penstock-{}-{}", name, getpid());
  std::filesystem::create_directories(folder);
  const std::string file = (folder / (name + ".html")).string();
  write_whole_file(file, page);
  const int status = std::system(format("python3 '{}' '{}'", CHECK_REPORT, file).c_str());
  EXPECT_EQ(status, 0) << file;
  if (status == 0) {
    std::filesystem::remove_all(folder);
  }
}

bool holds(const std::string& page, const std::string& text) {
  return page.find(text) != std::string::npos;
}

TEST(Report, AnEmptyReportIsAPage) {
  const std::string page = report_html({});
  EXPECT_TRUE(holds(page, "<h1>Penstock run</h1>"));
  EXPECT_FALSE(holds(page, "<svg"));
  EXPECT_FALSE(holds(page, "http-equiv=\"refresh\""));
  EXPECT_TRUE(curve_svg({}).empty());
}

TEST(Report, ShowsWhatItWasGivenInPlainWordsFirst) {
  const std::string page = report_html(full(100, 500));
  for (const char* text :
       {"Batch 512 is as fast", "input-bound", "Batch 512 was chosen: 11388 samples",
        "knee interval", "memory ends at 2048", "Where the time goes", "DRAM bandwidth", "resnet20",
        "# &lt;chosen&gt;", "data wait 11 %, supply short", "conv2d forward", "op12", "gpm",
        "Locked memory is limited", "(B_half)"}) {
    EXPECT_TRUE(holds(page, text)) << text;
  }
  EXPECT_LT(page.find("Batch 512 is as fast"), page.find("<svg"));
  expect_opens(page, "full");
}

TEST(Report, TheLivePageAsksForItselfAgain) {
  ReportData d = full(10, 10);
  d.live = true;
  d.refresh_seconds = 15;
  const std::string page = report_html(d);
  EXPECT_TRUE(holds(page, "<meta http-equiv=\"refresh\" content=\"15\">"));
  expect_opens(page, "live");
}

TEST(Report, AMillionPointsStayUnderTwoMegabytesAndKeepTheirSpikes) {
  ReportData d = full(50000, 500000);
  d.series[0].values[123457] = 40;  // one bad step
  d.config = std::string(3'000'000, '<');
  for (int plot = 0; plot < 40; ++plot) {
    for (int line = 0; line < 20; ++line) {
      ReportSeries s{.plot = format("plot {}", plot), .name = format("line {}", line)};
      std::mt19937 random(unsigned(plot * 100 + line));
      for (int i = 0; i < 3000; ++i) {
        s.samples.push_back(i);
        s.values.push_back(double(random()) * 1e-9);
      }
      d.series.push_back(std::move(s));
    }
  }
  const std::string page = report_html(d);
  EXPECT_LT(page.size(), 2'000'000u);
  EXPECT_TRUE(holds(page, "more plots are left out"));
  EXPECT_TRUE(holds(page, ">loss</text>"));
  // The axis reaches the spike.
  ReportData one;
  one.series = {d.series[0]};
  EXPECT_TRUE(holds(report_html(one), ">40</text>"));
  expect_opens(page, "large");
}

TEST(Report, HostileStringsStayText) {
  const std::string hostile[] = {
      "<script>alert(1)</script>",
      "\"><img src=x onerror=alert(1)>",
      "</title></style></svg></pre><script src=http://example.org/x.js></script>",
      "' onload='alert(1)",
      "javascript:alert(1)",
      "<!-- --> <![CDATA[ ]]>",
      "&lt;script&gt; &amp; &#x3c;b>",
      std::string("nul\0 byte", 9),
      "\xff\xfe broken \xc3",
      "\xe2\x80\xae reversed",
      "\x1b[31m escape",
      "{{}} {} }} {:x}",
      "line\nbreak\ttab",
      "url(http://example.org/a.png) @import 'x'",
      "<meta http-equiv=refresh content='0;url=http://example.org'>",
  };
  std::mt19937 random(3);
  const auto text = [&] {
    std::string out = hostile[random() % std::size(hostile)];
    for (int i = 0; i < 3; ++i) {
      out += char(random() % 256);
    }
    return out + (random() % 50 == 0 ? std::string(100000, '<') : "");
  };
  for (int round = 0; round < 14; ++round) {
    ReportData d = full(20, 20);
    d.title = text();
    d.subtitle = text();
    d.config = text() + "\n" + text();
    d.summary = {text(), text()};
    d.warnings = {text()};
    for (auto& f : d.facts) {
      f = {text(), text()};
    }
    for (Curve& c : d.curves) {
      c.name = text();
      c.reason = text();
      for (auto& p : c.points) {
        p.note = text();
      }
    }
    for (auto& s : d.series) {
      s.plot = text();
      s.name = text();
    }
    for (auto& x : d.decisions) {
      x.knob = text();
      x.from = text();
      x.to = text();
      x.why = text();
      x.outcome = text();
    }
    for (auto& m : d.memory) {
      m.name = text();
    }
    for (auto& dot : d.roofline->dots) {
      dot.name = text();
    }
    for (std::size_t i = 0; i < 5; ++i) {
      d.profile->rows[i].op = text();
    }
    d.verdict->headline = text();
    d.verdict->detail = text();
    d.verdict->advice = {text()};
    d.verdict->remedies = {{text(), text(), text(), 0.1}};
    d.verdict->evidence = {{text(), text(), 0}};
    d.verdict->alternatives = {{text(), 0.1, 0.2}};
    d.tables = {{text(), {.columns = {{text()}, {text()}}, .rows = {{text(), text()}}}}};
    const std::string page = report_html(d);
    EXPECT_LT(page.size(), 2'000'000u);
    for (const char* bad : {"<script", "<img", "<!--", "onerror=alert(1)>", "\x1b", "\xe2\x80\xae",
                            "content='0;url"}) {
      EXPECT_FALSE(holds(page, bad)) << bad;
    }
    EXPECT_EQ(page.find('\0'), std::string::npos);
    if (round == 0) {
      expect_opens(page, "hostile");
    }
  }
}

TEST(Report, ValuesThatWereNotMeasuredAreDashesAndGaps) {
  ReportData d;
  d.intervals.push_back({.begin = 0, .samples = 10, .account = account(1, 0, 10)});
  d.curves = {{.points = {{.batch = 8, .samples_per_second = 100}}}};
  d.series = {{.plot = "loss",
               .name = "training",
               .samples = {0, 1, 2, 3},
               .values = {1, NAN, INFINITY, 0.5}}};
  const std::string page = report_html(d);
  EXPECT_FALSE(holds(page, "nan"));
  EXPECT_FALSE(holds(page, "inf<"));
  EXPECT_FALSE(holds(page, ">DRAM bandwidth</text>"));  // no plot without a source
  EXPECT_TRUE(holds(page, "<td>-</td>"));
}

TEST(Report, TheCurveFileIsAnSvgWithTheKneeAndTheWall) {
  const std::string svg = curve_svg({curve("bf16", 1), curve("f32", 0.5)});
  EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0u);
  for (const char* text : {"bf16", "f32", "knee 512", "chosen 512", "memory ends at 2048",
                           "prefers-color-scheme:dark", "<title>"}) {
    EXPECT_TRUE(holds(svg, text)) << text;
  }
  EXPECT_FALSE(holds(svg, "href"));
}

TEST(Report, FitIsThePublishedFormula) {
  const CurveFit fit{.a = 0.004, .b = 1e-4, .c = 0.01};
  EXPECT_DOUBLE_EQ(fit.samples_per_second(8), 8 / 0.01);
  EXPECT_DOUBLE_EQ(fit.samples_per_second(1000), 1000 / 0.104);
}

}  // namespace
}  // namespace penstock::measure
