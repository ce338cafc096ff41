// Charts as SVG text: lines, points, bands and stacked areas on linear or logarithmic axes. They
// follow the page's colours (light or dark), print, and show values on hover without any script.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::measure {

// How the numbers of an axis are written.
enum class Unit : std::uint8_t { kPlain, kPercent, kSeconds, kBytes, kBytesPerSecond, kCount };
std::string unit_text(double value, Unit unit);

struct Axis {
  std::string title;
  Unit unit = Unit::kPlain;
  bool log = false;            // values <= 0 are left out
  bool powers_of_two = false;  // ticks of a logarithmic axis: batch sizes
  std::optional<double> low;   // none: from the data
  std::optional<double> high;
};

enum class Mark : std::uint8_t {
  kLine,
  kPoints,  // each with its value on hover
  kArea,    // stacked on the areas before it; all areas share their x
  kBand,    // between y and y2
};

// Points that are not finite make a gap.
struct ChartSeries {
  std::string name;  // in the legend; empty: not there
  Mark mark = Mark::kLine;
  std::vector<double> x;            // ascending for kLine, kArea and kBand
  std::vector<double> y;            // as many
  std::vector<double> y2;           // kBand only
  std::vector<std::string> labels;  // kPoints: more text on hover; empty or as many
  int color = -1;                   // index into the palette; -1: its place in the chart
  bool dashed = false;
};

// A vertical line at x, or a vertical band from x to x2.
struct ChartNote {
  double x = 0;
  std::optional<double> x2;
  std::string label;
  bool strong = false;
};

struct Chart {
  std::string title;
  std::string description;  // for screen readers
  Axis x;
  Axis y;
  std::vector<ChartSeries> series;
  std::vector<ChartNote> notes;
  int width = 760;  // pixels
  int height = 300;
};

// A chart inside an HTML page that carries chart_style(). Long series are thinned to the smallest
// and largest value per pixel, so spikes stay.
std::string svg_inline(const Chart& chart);
// A file of its own: carries its style, and shows light or dark as the viewer wants.
std::string svg_file(const Chart& chart);
// CSS that the inline charts need, without <style>.
std::string chart_style();

// At most about 4 x `columns` points of (x, y), keeping for each column of x the first, smallest,
// largest and last value; gaps stay gaps. `x` ascends.
struct Thinned {
  std::vector<double> x;
  std::vector<double> y;
};
Thinned thin(const std::vector<double>& x, const std::vector<double>& y, int columns,
             bool log_x = false);

}  // namespace penstock::measure
