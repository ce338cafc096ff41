// Charts: axes, thinning, gaps, and marks that can be checked in the text.
#include "framework/measure/svg.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "framework/core/check.h"
#include "framework/measure/svg_scale.h"

namespace penstock::measure {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++n;
  }
  return n;
}

bool holds(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

// The data of the `nth` path of that class.
std::string path_of(const std::string& svg, const std::string& style, int nth = 0) {
  const std::string start = "class=\"" + style + "\" d=\"";
  std::size_t at = svg.find(start);
  for (; nth > 0 && at != std::string::npos; --nth) {
    at = svg.find(start, at + 1);
  }
  if (at == std::string::npos) {
    return "";
  }
  at += start.size();
  return svg.substr(at, svg.find('"', at) - at);
}

// Its points' y, up to a Z.
std::vector<double> ys_of(const std::string& path) {
  std::vector<double> ys;
  for (std::size_t at = path.find(' '); at != std::string::npos; at = path.find(' ', at + 1)) {
    ys.push_back(std::strtod(path.c_str() + at, nullptr));
  }
  return ys;
}

TEST(Scale, LinearTicksArePleasantAndCoverTheValues) {
  const Scale s({}, {.low = 3, .high = 97, .any = true}, true, 5);
  EXPECT_EQ(s.ticks(), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_DOUBLE_EQ(s.place(0), 0);
  EXPECT_DOUBLE_EQ(s.place(100), 1);
  // Values that hardly vary are not squeezed against the top.
  const Scale narrow({}, {.low = 95, .high = 97, .any = true}, true, 5);
  EXPECT_GT(narrow.ticks().front(), 90);
}

TEST(Scale, LogTicksArePowers) {
  const Scale batch({.log = true, .powers_of_two = true}, {.low = 8, .high = 1024, .any = true},
                    false, 7);
  EXPECT_EQ(batch.ticks(), (std::vector<double>{8, 16, 32, 64, 128, 256, 512, 1024}));
  EXPECT_NEAR(batch.place(64), 3 / 7.0, 1e-12);
  EXPECT_FALSE(batch.shows(0));
  EXPECT_FALSE(batch.shows(-3));
  const Scale wide({.log = true}, {.low = 1e9, .high = 1e15, .any = true}, false, 7);
  EXPECT_EQ(wide.ticks().size(), 7u);
}

TEST(Scale, BytesAndSecondsHaveTheirOwnSteps) {
  const double gib = 1024.0 * 1024 * 1024;
  const Scale bytes({.unit = Unit::kBytes}, {.low = 0, .high = 4 * gib, .any = true}, true, 5);
  EXPECT_EQ(bytes.ticks()[1], gib);
  const Scale hours({.unit = Unit::kSeconds}, {.low = 0, .high = 5400, .any = true}, false, 6);
  EXPECT_EQ(hours.ticks()[1], 900);
}

TEST(Scale, StrangeExtentsGiveFinitePlaces) {
  const double most = std::numeric_limits<double>::max();
  for (const bool log : {false, true}) {
    for (const Extent e :
         {Extent{}, Extent{5, 5, true}, Extent{0, 0, true}, Extent{-2, -2, true},
          Extent{-most, most, true}, Extent{1e-300, 1e300, true}, Extent{1, 1 + 1e-15, true}}) {
      const Scale s({.log = log}, e, true, 5);
      EXPECT_LE(s.ticks().size(), 700u);
      for (const double v : {e.low, e.high, 1.0}) {
        if (s.shows(v)) {
          EXPECT_TRUE(std::isfinite(s.place(v)));
        }
      }
    }
  }
}

TEST(Thin, KeepsTheFirstSmallestLargestAndLastOfEachColumn) {
  std::mt19937 random(1);
  std::vector<double> x;
  std::vector<double> y;
  for (int i = 0; i < 200000; ++i) {
    x.push_back(i);
    y.push_back(double(random() % 1000));
  }
  y[77777] = 5000;
  y[123456] = -7000;
  const Thinned t = thin(x, y, 300);
  EXPECT_LE(t.x.size(), 4u * 301);
  EXPECT_GE(t.x.size(), 300u);
  EXPECT_TRUE(std::is_sorted(t.x.begin(), t.x.end()));
  EXPECT_EQ(*std::max_element(t.y.begin(), t.y.end()), 5000);
  EXPECT_EQ(*std::min_element(t.y.begin(), t.y.end()), -7000);
  EXPECT_EQ(t.x.front(), 0);
  EXPECT_EQ(t.x.back(), 199999);
  // Against the definition, column by column.
  const double per = 300 / 199999.0;
  for (int column = 0; column < 300; column += 7) {
    double low = 1e9;
    double kept = 1e9;
    for (std::size_t i = 0; i < x.size(); ++i) {
      low = std::floor(x[i] * per) == column ? std::min(low, y[i]) : low;
    }
    for (std::size_t i = 0; i < t.x.size(); ++i) {
      kept = std::floor(t.x[i] * per) == column ? std::min(kept, t.y[i]) : kept;
    }
    EXPECT_EQ(kept, low) << column;
  }
}

TEST(Thin, ShortSeriesStayAndLongGapsStayGaps) {
  const std::vector<double> x = {1, 2, 3};
  EXPECT_EQ(thin(x, {1, kNan, 3}, 100).x, x);
  std::vector<double> many(10000);
  std::vector<double> y(10000, 1);
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i] = double(i);
    y[i] = i >= 4000 && i < 6000 ? kNan : 1;
  }
  const Thinned t = thin(many, y, 100);
  EXPECT_TRUE(std::any_of(t.y.begin(), t.y.end(), [](double v) { return std::isnan(v); }));
}

TEST(Chart, ALineBreaksAtAGap) {
  const Chart c{.title = "t",
                .series = {{.name = "a", .x = {0, 1, 2, 3, 4}, .y = {1, 2, kNan, 4, 5}}}};
  const std::string svg = svg_inline(c);
  const std::string path = path_of(svg, "l s0", 1);  // the legend's swatch comes first
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 2);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'L'), 2);
  EXPECT_FALSE(holds(svg, "nan"));
}

TEST(Chart, StackedAreasAddUpToTheTop) {
  const std::vector<double> x = {0, 1, 2};
  const Chart c{.y = {.unit = Unit::kPercent, .low = 0, .high = 1},
                .series = {{.name = "a", .mark = Mark::kArea, .x = x, .y = {0.2, 0.5, 0.9}},
                           {.name = "b", .mark = Mark::kArea, .x = x, .y = {0.8, 0.5, 0.1}}},
                .width = 284,
                .height = 200};
  const std::string svg = svg_inline(c);
  // Below: a's upper edge; above: the plot's top, three times the same y.
  const std::vector<double> ys = ys_of(path_of(svg, "f1"));
  ASSERT_EQ(ys.size(), 6u);
  EXPECT_EQ(ys[3], ys[4]);
  EXPECT_EQ(ys[4], ys[5]);
  const double bottom = 200 - 42;
  const double height = bottom - ys[5];
  EXPECT_NEAR(ys[0], bottom - 0.2 * height, 0.1);
  EXPECT_NEAR(ys[2], bottom - 0.9 * height, 0.1);
}

TEST(Chart, LongStacksStillAddUp) {
  std::vector<double> x;
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < 100000; ++i) {
    x.push_back(i);
    a.push_back(i % 2 == 0 ? 0.0 : 1.0);
    b.push_back(i % 2 == 0 ? 1.0 : 0.0);
  }
  const Chart c{.y = {.low = 0, .high = 1},
                .series = {{.name = "a", .mark = Mark::kArea, .x = x, .y = a},
                           {.name = "b", .mark = Mark::kArea, .x = x, .y = b}}};
  const std::string svg = svg_inline(c);
  EXPECT_LT(svg.size(), 60000u);
  // The upper edge is one height throughout.
  const std::vector<double> ys = ys_of(path_of(svg, "f1"));
  ASSERT_GE(ys.size(), 780u);
  EXPECT_EQ(std::count(ys.begin() + std::ptrdiff_t(ys.size() / 2), ys.end(), ys.back()),
            std::ptrdiff_t(ys.size() / 2));
}

TEST(Chart, PointsCarryTheirValueAndLabelOnHover) {
  const Chart c{.x = {.log = true, .powers_of_two = true},
                .series = {{.name = "bf16",
                            .mark = Mark::kPoints,
                            .x = {0, 8, 16},
                            .y = {1, 100, 200},
                            .labels = {"", "refused: <clock>", ""}}}};
  const std::string svg = svg_inline(c);
  EXPECT_TRUE(holds(svg, "<title>bf16 8: 100, refused: &lt;clock&gt;</title>"));
  EXPECT_EQ(count(svg, "<circle"), 3);  // legend and the two that a log axis can show
}

TEST(Chart, ABandFileIsCompleteAndBalanced) {
  const std::string svg = svg_file(
      {.title = "<b>",
       .description = "d",
       .series = {{.mark = Mark::kBand, .x = {1, 2}, .y = {1, 2}, .y2 = {2, 3}}, {.name = "none"}},
       .notes = {{.x = 1, .x2 = 1.5, .label = "from"}, {.x = 1.2, .label = "at", .strong = true}}});
  EXPECT_TRUE(holds(svg, "&lt;b&gt;"));
  EXPECT_TRUE(holds(svg, "xmlns="));
  EXPECT_TRUE(holds(svg, "class=\"n\""));
  EXPECT_EQ(count(svg, "{"), count(svg, "}"));
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
}

TEST(Chart, SeriesThatDoNotFitTogetherAreNamed) {
  EXPECT_THROW(svg_inline({.series = {{.name = "a", .x = {1, 2}, .y = {1}}}}), Error);
  EXPECT_THROW(svg_inline({.series = {{.mark = Mark::kArea, .x = {1, 2}, .y = {1, 2}},
                                      {.mark = Mark::kArea, .x = {1}, .y = {1}}}}),
               Error);
}

TEST(Chart, RandomChartsNeverHoldNumbersThatAreNone) {
  std::mt19937 random(5);
  const double odd[] = {kNan, INFINITY, -INFINITY, 0, -1, 1e-308, 1e308, -1e308, 1, 2, 1e-9, 12345};
  for (int round = 0; round < 500; ++round) {
    Chart c{.x = {.log = random() % 2 == 0, .powers_of_two = random() % 2 == 0},
            .y = {.unit = Unit(random() % 6), .log = random() % 2 == 0}};
    const std::size_t n = random() % 6;
    for (int s = 0; s < 4; ++s) {
      ChartSeries one{.name = "s", .mark = Mark(s)};
      for (std::size_t i = 0; i < n; ++i) {
        one.x.push_back(odd[random() % std::size(odd)]);
        one.y.push_back(odd[random() % std::size(odd)]);
        one.y2.push_back(odd[random() % std::size(odd)]);
      }
      std::sort(one.x.begin(), one.x.end(),
                [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
      c.series.push_back(one);
    }
    c.series[1].x.swap(c.series[2].x);
    c.notes = {{.x = odd[random() % std::size(odd)], .label = "n"}};
    const std::string svg = svg_inline(c);
    for (const char* bad : {"nan", "inf"}) {
      const std::size_t at = svg.find(bad);
      EXPECT_EQ(at, std::string::npos)
          << "round " << round << ": " << svg.substr(at < 60 ? 0 : at - 60, 120);
    }
  }
}

TEST(UnitText, SaysWhatThereIs) {
  EXPECT_EQ(unit_text(0.384, Unit::kPercent), "38.4 %");
  EXPECT_EQ(unit_text(2.9e12, Unit::kBytesPerSecond), "2.9 TB/s");
  EXPECT_EQ(unit_text(kNan, Unit::kCount), "-");
  EXPECT_EQ(unit_text(0, Unit::kSeconds), "0");
  EXPECT_EQ(unit_text(1536, Unit::kBytes), "1.5 KiB");
}

}  // namespace
}  // namespace penstock::measure
