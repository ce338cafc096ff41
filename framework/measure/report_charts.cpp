#include "framework/measure/report_charts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "framework/core/format.h"

namespace penstock::measure {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The terms of an account as charts and tables name them, with their colours.
struct Term {
  const char* name;
  int color;
  double (*seconds)(const StepAccount&);
};
constexpr std::array<Term, 6> kTerms = {{
    {"kernels", 2, [](const StepAccount& a) { return a.kernels; }},
    {"data wait", 1, [](const StepAccount& a) { return a.data_wait; }},
    {"exposed copies", 0, [](const StepAccount& a) { return a.h2d_exposed; }},
    {"launch gaps", 3, [](const StepAccount& a) { return a.launch_gap; }},
    {"evaluation, saving, log, tuner", 4, [](const StepAccount& a) { return a.other_total(); }},
    {"unaccounted", 7, [](const StepAccount& a) { return std::max(0.0, a.unaccounted); }},
}};

std::optional<double> share_of(const std::optional<Bandwidth>& dram) {
  return dram && dram->source != Source::kNone ? dram->share_of_achievable : std::nullopt;
}

std::string source_of(const std::optional<Bandwidth>& dram) {
  return dram ? name_of(dram->source) : "";
}

// Accounts as stacked shares of wall over x; terms that never appear are left out.
std::optional<Chart> stacked_shares(Chart chart, const std::vector<double>& x,
                                    const std::vector<StepAccount>& accounts) {
  if (x.empty()) {
    return std::nullopt;
  }
  for (const Term& term : kTerms) {
    ChartSeries s{.name = term.name, .mark = Mark::kArea, .x = x, .color = term.color};
    bool any = false;
    for (const StepAccount& a : accounts) {
      s.y.push_back(a.share(term.seconds(a)));
      any = any || s.y.back() > 5e-4;
    }
    if (any) {
      chart.series.push_back(std::move(s));
    }
  }
  chart.y.unit = Unit::kPercent;
  chart.y.title = "share of time";
  chart.y.low = 0;
  chart.y.high = 1;
  return chart;
}

// Time since the start.
std::string clock_text(double seconds) {
  return seconds < 60 ? format("{:.1f} s", seconds) : seconds_text(seconds);
}

Axis batch_axis() {
  return {.title = "batch", .log = true, .powers_of_two = true};
}

}  // namespace

std::string speed_text(double samples_per_second) {
  return format(samples_per_second >= 1000 ? "{:.0f}" : "{:.4g}", samples_per_second);
}

double CurveFit::samples_per_second(double batch) const {
  const double seconds = std::max(c, a + b * batch) + q * batch * batch;
  return seconds > 0 ? batch / seconds : 0;
}

double ReportInterval::samples_per_second() const {
  return account.wall > 0 ? double(account.samples) / account.wall : 0;
}

std::optional<Chart> curve_chart(const std::vector<Curve>& curves) {
  Chart chart{.title = "Throughput against batch",
              .description = "Measured samples a second at each batch size, with the fitted curve.",
              .x = batch_axis(),
              .y = {.title = "samples / s", .unit = Unit::kCount, .low = 0},
              .height = 340};
  int color = 0;
  for (const Curve& curve : curves) {
    if (curve.points.empty()) {
      continue;
    }
    const bool first = color == 0;
    ChartSeries points{.name = curve.name.empty() ? "measured" : curve.name,
                       .mark = Mark::kPoints,
                       .color = color};
    ChartSeries interval{.mark = Mark::kBand, .color = color};
    for (const CurvePoint& p : curve.points) {
      points.x.push_back(double(p.batch));
      points.y.push_back(p.samples_per_second);
      points.labels.push_back(p.note);
      if (p.lower && p.upper) {
        interval.x.push_back(double(p.batch));
        interval.y.push_back(*p.lower);
        interval.y2.push_back(*p.upper);
      }
    }
    const auto [low, high] = std::minmax_element(points.x.begin(), points.x.end());
    const double from = std::max(1.0, *low);
    const double to = std::max(from, *high);
    if (!interval.x.empty()) {
      chart.series.push_back(std::move(interval));
    }
    if (curve.fit) {
      ChartSeries fit{.name = first ? "fit" : "", .mark = Mark::kLine, .color = color};
      for (int i = 0; i <= 80; ++i) {
        fit.x.push_back(from * std::pow(to / from, i / 80.0));
        fit.y.push_back(curve.fit->samples_per_second(fit.x.back()));
      }
      chart.series.push_back(std::move(fit));
    }
    if (first && !curve.bound.empty()) {
      ChartSeries bound{.name = "what memory and arithmetic allow", .color = 7, .dashed = true};
      for (const auto& [batch, rate] : curve.bound) {
        bound.x.push_back(double(batch));
        bound.y.push_back(rate);
      }
      chart.series.push_back(std::move(bound));
    }
    chart.series.push_back(std::move(points));
    if (first) {
      if (curve.knee_interval) {
        chart.notes.push_back({.x = double(curve.knee_interval->first),
                               .x2 = double(curve.knee_interval->second),
                               .label = "knee interval"});
      }
      if (curve.knee) {
        chart.notes.push_back({.x = double(*curve.knee), .label = format("knee {}", *curve.knee)});
      }
      if (curve.chosen) {
        chart.notes.push_back({.x = double(*curve.chosen),
                               .label = format("chosen {}", *curve.chosen),
                               .strong = true});
      }
      // A wall far beyond what was measured would squeeze the curve.
      if (curve.memory_wall && double(*curve.memory_wall) <= 16 * to) {
        chart.notes.push_back({.x = double(*curve.memory_wall),
                               .label = format("memory ends at {}", *curve.memory_wall)});
      }
    }
    ++color;
  }
  return color > 0 ? std::optional(chart) : std::nullopt;
}

std::optional<Chart> curve_share_chart(const Curve& curve) {
  ChartSeries dram{.name = "DRAM bandwidth, of achievable", .mark = Mark::kLine, .color = 0};
  ChartSeries wait{.name = "waiting for data, of time", .mark = Mark::kLine, .color = 1};
  ChartSeries launch{.name = "launch gaps, of time", .mark = Mark::kLine, .color = 3};
  bool any = false;
  for (const CurvePoint& p : curve.points) {
    const auto add = [&](ChartSeries& s, std::optional<double> value) {
      s.x.push_back(double(p.batch));
      s.y.push_back(value.value_or(kNone));
      any = any || value;
    };
    const auto part = [&](double StepAccount::*term) {
      return p.account && p.account->wall > 0 ? std::optional(p.account->share((*p.account).*term))
                                              : std::nullopt;
    };
    add(dram, share_of(p.dram));
    add(wait, part(&StepAccount::data_wait));
    add(launch, part(&StepAccount::launch_gap));
  }
  if (!any) {
    return std::nullopt;
  }
  return Chart{.title = "DRAM bandwidth and stalls against batch",
               .x = batch_axis(),
               .y = {.title = "share", .unit = Unit::kPercent, .low = 0},
               .series = {dram, wait, launch},
               .height = 260};
}

std::optional<Chart> curve_account_chart(const Curve& curve) {
  std::vector<double> x;
  std::vector<StepAccount> accounts;
  for (const CurvePoint& p : curve.points) {
    if (p.account && p.account->wall > 0) {
      x.push_back(double(p.batch));
      accounts.push_back(*p.account);
    }
  }
  return stacked_shares(
      {.title = "Where the time goes at each batch", .x = batch_axis(), .height = 260}, x,
      accounts);
}

std::optional<Chart> curve_memory_chart(const Curve& curve) {
  ChartSeries planned{.name = "planned", .color = 0};
  ChartSeries measured{.name = "measured", .mark = Mark::kPoints, .color = 1};
  for (const CurvePoint& p : curve.points) {
    if (p.memory_planned) {
      planned.x.push_back(double(p.batch));
      planned.y.push_back(*p.memory_planned);
    }
    if (p.memory_measured) {
      measured.x.push_back(double(p.batch));
      measured.y.push_back(*p.memory_measured);
    }
  }
  if (planned.x.empty() && measured.x.empty()) {
    return std::nullopt;
  }
  return Chart{.title = "Memory against batch",
               .x = batch_axis(),
               .y = {.title = "memory", .unit = Unit::kBytes, .low = 0},
               .series = {planned, measured},
               .height = 240};
}

std::optional<Chart> account_chart(const std::vector<ReportInterval>& intervals) {
  std::vector<double> x;
  std::vector<StepAccount> accounts;
  for (const ReportInterval& i : intervals) {
    if (i.account.wall > 0) {
      x.push_back(i.begin + i.account.wall);
      accounts.push_back(i.account);
    }
  }
  return stacked_shares({.title = "Where the time goes",
                         .x = {.title = "time since the start", .unit = Unit::kSeconds},
                         .height = 280},
                        x, accounts);
}

std::optional<Chart> throughput_chart(const std::vector<ReportInterval>& intervals) {
  ChartSeries rate;
  for (const ReportInterval& i : intervals) {
    if (i.account.wall > 0) {
      rate.x.push_back(i.begin + i.account.wall);
      rate.y.push_back(i.samples_per_second());
    }
  }
  if (rate.x.empty()) {
    return std::nullopt;
  }
  return Chart{.title = "Throughput",
               .x = {.title = "time since the start", .unit = Unit::kSeconds},
               .y = {.title = "samples / s", .unit = Unit::kCount, .low = 0},
               .series = {rate},
               .height = 220};
}

std::optional<Chart> bandwidth_chart(const std::vector<ReportInterval>& intervals) {
  // One line for each source: they are never mixed.
  std::array<ChartSeries, 3> lines;
  bool any = false;
  for (const ReportInterval& i : intervals) {
    for (std::size_t s = 1; s < lines.size(); ++s) {
      const bool here = i.dram && std::size_t(i.dram->source) == s;
      lines[s].x.push_back(i.begin + i.account.wall);
      lines[s].y.push_back(here ? i.dram->bytes_per_second : kNone);
      any = any || here;
    }
  }
  if (!any) {
    return std::nullopt;
  }
  Chart chart{.title = "DRAM bandwidth",
              .x = {.title = "time since the start", .unit = Unit::kSeconds},
              .y = {.title = "bytes / s", .unit = Unit::kBytesPerSecond, .low = 0},
              .height = 220};
  for (std::size_t s = 1; s < lines.size(); ++s) {
    if (std::any_of(lines[s].y.begin(), lines[s].y.end(),
                    [](double y) { return std::isfinite(y); })) {
      lines[s].name = Source(s) == Source::kGpm ? "measured (gpm)" : "modelled (ledger)";
      lines[s].color = int(s) - 1;
      chart.series.push_back(lines[s]);
    }
  }
  return chart;
}

std::optional<Chart> knobs_chart(const std::vector<ReportInterval>& intervals,
                                 const std::vector<ReportDecision>& decisions) {
  if (intervals.empty()) {
    return std::nullopt;
  }
  Chart chart{.title = "Batch, workers and depth",
              .x = {.title = "time since the start", .unit = Unit::kSeconds},
              .y = {.title = "setting", .log = true, .powers_of_two = true},
              .height = 260};
  const auto add = [&](const char* name, i64 (*value)(const ReportInterval&)) {
    ChartSeries s{.name = name};
    for (const ReportInterval& i : intervals) {
      // Two points an interval: settings hold until they change.
      for (const double x : {i.begin, i.begin + i.account.wall}) {
        s.x.push_back(x);
        s.y.push_back(value(i) > 0 ? double(value(i)) : kNone);
      }
    }
    chart.series.push_back(std::move(s));
  };
  add("batch", [](const ReportInterval& i) { return i.batch; });
  add("workers", [](const ReportInterval& i) { return i64(i.workers); });
  add("depth", [](const ReportInterval& i) { return i64(i.depth); });
  for (std::size_t i = 0; i < std::min<std::size_t>(decisions.size(), 200); ++i) {
    const ReportDecision& d = decisions[i];
    chart.notes.push_back({.x = d.seconds,
                           .label = format("{} {} to {}", d.knob, d.from, d.to),
                           .strong = d.outcome == "kept"});
  }
  return chart;
}

std::optional<Chart> roofline_chart(const Roofline& r) {
  if (r.dots.empty() || !(r.bytes_per_second > 0)) {
    return std::nullopt;
  }
  double low = r.dots.front().flops_per_byte;
  double high = low;
  Chart chart{.title = "Roofline",
              .description =
                  "Each dot is an op: arithmetic per byte against FLOP/s reached. The "
                  "line is what memory and arithmetic allow.",
              .x = {.title = "FLOP per byte", .log = true},
              .y = {.title = "FLOP / s", .unit = Unit::kCount, .log = true},
              .height = 340};
  ChartSeries dots{.name = "ops", .mark = Mark::kPoints, .color = 1};
  for (const RooflineDot& d : r.dots) {
    dots.x.push_back(d.flops_per_byte);
    dots.y.push_back(d.flops_per_second);
    dots.labels.push_back(format("{}, {:.1f} % of the time", d.name, 100 * d.share));
    low = std::min(low, d.flops_per_byte);
    high = std::max(high, d.flops_per_byte);
  }
  const double ridge = r.flops_per_second > 0 ? r.flops_per_second / r.bytes_per_second : high;
  low = std::max(1e-6, std::min(low, ridge / 10));
  high = std::max(high, ridge * 10);
  ChartSeries roof{.name = "ceiling", .color = 0};
  for (const double x : {low, std::clamp(ridge, low, high), high}) {
    const double memory = x * r.bytes_per_second;
    roof.x.push_back(x);
    roof.y.push_back(r.flops_per_second > 0 ? std::min(memory, r.flops_per_second) : memory);
  }
  chart.series = {roof, dots};
  return chart;
}

std::vector<Chart> series_charts(const std::vector<ReportSeries>& series) {
  std::vector<Chart> charts;
  for (const ReportSeries& s : series) {
    auto chart = std::find_if(charts.begin(), charts.end(),
                              [&](const Chart& c) { return c.title == s.plot; });
    if (chart == charts.end()) {
      charts.push_back({.title = s.plot,
                        .x = {.title = "samples", .unit = Unit::kCount},
                        .y = {.unit = s.unit},
                        .height = 240});
      chart = charts.end() - 1;
    }
    chart->series.push_back({.name = s.name, .x = s.samples, .y = s.values});
  }
  return charts;
}

std::vector<RooflineDot> roofline_dots(const Profile& profile) {
  std::vector<RooflineDot> dots;
  for (const ProfileRow& r : profile.rows) {
    if (!r.copy && r.seconds > 0 && r.bytes > 0 && r.flops > 0) {
      dots.push_back({format("{} {}", r.op, name_of(r.phase)), r.flops / r.bytes,
                      r.flops / r.seconds, r.share});
    }
  }
  return dots;
}

// ---- tables ------------------------------------------------------------------------------------

TextTable curve_table(const Curve& curve) {
  TextTable t{.columns = {{"batch"},
                          {"samples/s"},
                          {"interval"},
                          {"step"},
                          {"DRAM"},
                          {"of achievable"},
                          {"source", Align::kLeft},
                          {"data wait"},
                          {"launch gaps"},
                          {"memory planned"},
                          {"measured"},
                          {"", Align::kLeft}},
              .rows = {}};
  for (const CurvePoint& p : curve.points) {
    const bool timed = p.samples_per_second > 0;
    const bool account = p.account && p.account->wall > 0;
    t.rows.push_back(
        {format("{}{}", p.batch, curve.chosen == p.batch ? " *" : ""),
         timed ? speed_text(p.samples_per_second) : "",
         p.lower && p.upper ? speed_text(*p.lower) + " to " + speed_text(*p.upper) : "",
         timed ? seconds_cell(double(p.batch) / p.samples_per_second) : "",
         p.dram ? rate_cell(p.dram->bytes_per_second) : "", percent_cell(share_of(p.dram)),
         source_of(p.dram), account ? percent_cell(p.account->share(p.account->data_wait)) : "",
         account ? percent_cell(p.account->share(p.account->launch_gap)) : "",
         bytes_cell(p.memory_planned), bytes_cell(p.memory_measured), p.note});
  }
  return t;
}

TextTable account_table(const std::vector<ReportInterval>& intervals) {
  TextTable t{.columns = {{"until"}, {"samples"}, {"samples/s"}, {"batch"}, {"W"}, {"D"}},
              .rows = {}};
  for (const Term& term : kTerms) {
    t.columns.push_back({term.name});
  }
  for (const char* more : {"memcpy total", "memcpy exposed", "DRAM", "of achievable"}) {
    t.columns.push_back({more});
  }
  t.columns.push_back({"source", Align::kLeft});
  for (const ReportInterval& i : intervals) {
    const StepAccount& a = i.account;
    std::vector<std::string> row = {clock_text(i.begin + a.wall),
                                    format("{}", i.samples),
                                    speed_text(i.samples_per_second()),
                                    format("{}x{}", i.batch, i.accumulate),
                                    format("{}", i.workers),
                                    format("{}", i.depth)};
    for (const Term& term : kTerms) {
      row.push_back(percent_cell(a.share(term.seconds(a))));
    }
    row.push_back(percent_cell(a.share(a.memcpy_total)));
    row.push_back(percent_cell(a.share(a.memcpy_exposed)));
    row.push_back(i.dram ? rate_cell(i.dram->bytes_per_second) : "");
    row.push_back(percent_cell(share_of(i.dram)));
    row.push_back(source_of(i.dram));
    t.rows.push_back(std::move(row));
  }
  return t;
}

TextTable decisions_table(const std::vector<ReportDecision>& decisions) {
  TextTable t{.columns = {{"at"},
                          {"samples"},
                          {"setting", Align::kLeft},
                          {"from"},
                          {"to"},
                          {"expected"},
                          {"measured"},
                          {"outcome", Align::kLeft},
                          {"why", Align::kLeft}},
              .rows = {}};
  for (const ReportDecision& d : decisions) {
    t.rows.push_back({clock_text(d.seconds), format("{}", d.samples), d.knob, d.from, d.to,
                      percent_cell(d.expected_gain), percent_cell(d.measured_gain), d.outcome,
                      d.why});
  }
  return t;
}

TextTable memory_table(const std::vector<ReportMemory>& memory) {
  TextTable t{.columns = {{"memory", Align::kLeft}, {"planned"}, {"measured"}, {"difference"}},
              .rows = {}};
  for (const ReportMemory& m : memory) {
    const bool both = m.planned && m.measured && *m.planned > 0;
    t.rows.push_back({m.name, bytes_cell(m.planned), bytes_cell(m.measured),
                      both ? percent_cell(*m.measured / *m.planned - 1) : ""});
  }
  return t;
}

TextTable roofline_table(const Roofline& roofline) {
  TextTable t{.columns = {{"op", Align::kLeft},
                          {"FLOP/byte"},
                          {"FLOP/s"},
                          {"of ceiling"},
                          {"share of time"}},
              .rows = {}};
  for (const RooflineDot& d : roofline.dots) {
    double roof = d.flops_per_byte * roofline.bytes_per_second;
    roof = roofline.flops_per_second > 0 ? std::min(roof, roofline.flops_per_second) : roof;
    t.rows.push_back({d.name, cell(d.flops_per_byte, "{:.3g}"), flops_cell(d.flops_per_second),
                      roof > 0 ? percent_cell(d.flops_per_second / roof) : "",
                      percent_cell(d.share)});
  }
  return t;
}

TextTable values_table(const Chart& chart, std::size_t rows) {
  TextTable t{.columns = {{chart.x.title}}, .rows = {}};
  // Rows at the x of the longest series; the others show what they have at that x.
  const ChartSeries* longest = nullptr;
  for (const ChartSeries& s : chart.series) {
    t.columns.push_back({s.name.empty() ? chart.title : s.name});
    longest = longest == nullptr || s.x.size() > longest->x.size() ? &s : longest;
  }
  const std::size_t n = longest == nullptr ? 0 : longest->x.size();
  const std::size_t shown = std::min(n, std::max<std::size_t>(rows, 2));
  for (std::size_t k = 0; k < shown; ++k) {
    const double x = longest->x[shown < 2 ? 0 : k * (n - 1) / (shown - 1)];
    std::vector<std::string> row = {unit_text(x, chart.x.unit)};
    for (const ChartSeries& s : chart.series) {
      // The newest value at or before x.
      const auto after = std::upper_bound(s.x.begin(), s.x.end(), x);
      const bool has = after != s.x.begin();
      const double y = has ? s.y[std::size_t(after - s.x.begin()) - 1] : kNone;
      row.push_back(std::isfinite(y) ? unit_text(y, chart.y.unit) : "");
    }
    t.rows.push_back(std::move(row));
  }
  return t;
}

}  // namespace penstock::measure
