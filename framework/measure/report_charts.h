// The charts and tables of a report. Only report.cpp and report_charts.cpp need it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/measure/report.h"

namespace penstock::measure {

// Each chart is none when there is nothing to show.
std::optional<Chart> curve_chart(const std::vector<Curve>& curves);
// Shares of DRAM bandwidth and of waiting against batch.
std::optional<Chart> curve_share_chart(const Curve& curve);
// Where the time of a step goes at each batch, in shares of it.
std::optional<Chart> curve_account_chart(const Curve& curve);
std::optional<Chart> curve_memory_chart(const Curve& curve);
std::optional<Chart> account_chart(const std::vector<ReportInterval>& intervals);
std::optional<Chart> throughput_chart(const std::vector<ReportInterval>& intervals);
std::optional<Chart> bandwidth_chart(const std::vector<ReportInterval>& intervals);
std::optional<Chart> knobs_chart(const std::vector<ReportInterval>& intervals,
                                 const std::vector<ReportDecision>& decisions);
std::optional<Chart> roofline_chart(const Roofline& roofline);
// One chart for each name in ReportSeries::plot, in order of appearance.
std::vector<Chart> series_charts(const std::vector<ReportSeries>& series);

// 11390.2 -> "11390", 98.7654 -> "98.77".
std::string speed_text(double samples_per_second);

TextTable curve_table(const Curve& curve);
TextTable account_table(const std::vector<ReportInterval>& intervals);
TextTable decisions_table(const std::vector<ReportDecision>& decisions);
TextTable memory_table(const std::vector<ReportMemory>& memory);
TextTable roofline_table(const Roofline& roofline);
// The points that a chart's lines show, thinned to `rows`.
TextTable values_table(const Chart& chart, std::size_t rows);

}  // namespace penstock::measure
