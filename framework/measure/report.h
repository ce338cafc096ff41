// The report of a run: one HTML file that needs nothing else, opens offline, prints, and says in
// plain words first what the plots and tables below it show.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/core/target.h"
#include "framework/measure/account.h"
#include "framework/measure/meter.h"
#include "framework/measure/profile.h"
#include "framework/measure/roofline.h"
#include "framework/measure/svg.h"
#include "framework/measure/table.h"
#include "framework/measure/verdict.h"

namespace penstock::measure {

struct ReportFact {
  std::string name;
  std::string value;
};

// A quantity over the run. Series with the same `plot` share a plot.
struct ReportSeries {
  std::string plot;  // "loss", "accuracy"; its title
  std::string name;  // "training"
  Unit unit = Unit::kPlain;
  std::vector<double> samples;  // absolute sample position, ascending
  std::vector<double> values;
};

// One measured (or refused) batch of a throughput curve.
struct CurvePoint {
  i64 batch = 0;
  double samples_per_second = 0;
  std::optional<double> lower;  // confidence interval
  std::optional<double> upper;
  std::optional<Bandwidth> dram;
  std::optional<StepAccount> account;
  std::optional<double> memory_planned;   // bytes at this batch
  std::optional<double> memory_measured;  // bytes
  std::string note;                       // "refused: clock moved"
};

// t(B) = max(c, a + b B) + q B^2 in seconds.
struct CurveFit {
  double a = 0;
  double b = 0;
  double c = 0;
  double q = 0;
  double samples_per_second(double batch) const;
};

// Throughput against batch in one precision.
struct Curve {
  std::string name;  // "bf16"
  std::vector<CurvePoint> points;
  std::optional<CurveFit> fit;
  std::optional<double> half_batch;
  std::optional<i64> knee;
  std::optional<std::pair<i64, i64>> knee_interval;
  std::optional<i64> gain_knee;     // smallest batch whose doubling gains < 15 %
  std::optional<i64> elastic_knee;  // smallest batch with elasticity < 25 %
  std::optional<i64> memory_wall;   // largest batch that fits
  std::optional<i64> chosen;
  std::vector<std::pair<i64, double>> bound;  // batch, samples/s that the ceilings allow
  std::string reason;                         // why the search ended and chose this, one sentence
};

// One interval of the run.
struct ReportInterval {
  double begin = 0;  // seconds since the start
  i64 samples = 0;   // absolute position at its end
  StepAccount account;
  std::optional<Bandwidth> dram;
  std::optional<double> memory_used;  // bytes
  i64 batch = 0;
  i64 accumulate = 1;
  int workers = 0;
  int depth = 0;
  double samples_per_second() const;
};

struct ReportMemory {
  std::string name;                // "weights", "activations", "outside"
  std::optional<double> planned;   // bytes
  std::optional<double> measured;  // bytes
};

// A dot under the roofline.
struct RooflineDot {
  std::string name;
  double flops_per_byte = 0;
  double flops_per_second = 0;
  double share = 0;  // of the step's time
};
struct Roofline {
  double bytes_per_second = 0;
  double flops_per_second = 0;
  std::vector<RooflineDot> dots;
};
// Dots of the rows that have time, bytes and FLOPs.
std::vector<RooflineDot> roofline_dots(const Profile& profile);

struct ReportDecision {
  double seconds = 0;  // since the start
  i64 samples = 0;     // absolute position
  std::string knob;    // "batch", "workers"
  std::string from;
  std::string to;
  std::string why;
  std::string outcome;  // "kept", "reverted", "trial", ""
  std::optional<double> expected_gain;
  std::optional<double> measured_gain;
};

// All optional: a section without data is left out.
struct ReportData {
  std::string title;     // the run's name
  std::string subtitle;  // "resnet20 on CIFAR-10, NVIDIA H200"
  bool live = false;     // the run goes on: the page asks for itself again
  int refresh_seconds = 10;
  std::vector<std::string> summary;  // plain sentences before everything else
  std::vector<ReportFact> facts;     // command, device, versions, times
  std::string config;                // config.resolved.yaml as text
  std::optional<Verdict> verdict;
  std::vector<Curve> curves;  // the first is the run's own; further ones are overlaid precisions
  std::vector<ReportInterval> intervals;
  std::vector<ReportSeries> series;
  std::vector<ReportDecision> decisions;
  std::vector<ReportMemory> memory;
  std::optional<Roofline> roofline;
  std::optional<Profile> profile;
  std::vector<std::pair<std::string, TextTable>> tables;  // whatever else: title and table
  std::vector<std::string> warnings;
};

// The whole page, under 2 MB whatever the length of the run: plots are thinned to the smallest and
// largest value per pixel, tables to their first, last and evenly spaced rows. No script, no
// remote reference; every string passes escape().
std::string report_html(const ReportData& data);

// curve.svg: throughput against batch with fit, bound, knee interval and memory wall; several
// precisions are overlaid. Empty when no curve has a point.
std::string curve_svg(const std::vector<Curve>& curves);

}  // namespace penstock::measure
