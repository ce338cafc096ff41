#include "framework/measure/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "framework/core/check.h"
#include "framework/core/format.h"
#include "framework/measure/escape.h"
#include "framework/measure/svg_scale.h"
#include "framework/measure/table.h"

namespace penstock::measure {
namespace {

constexpr int kColors = 8;
constexpr double kLetter = 6.4;  // mean width of a letter at 11 px, a little generous
constexpr std::size_t kLongestLabel = 120;
constexpr int kHoverStrips = 120;

std::string text_of(const std::string& text, std::size_t limit = kLongestLabel) {
  return escape(text, Syntax::kMarkup, limit);
}

// Coordinates in tenths of a pixel, without a trailing ".0".
std::string px(double value) {
  std::string out = format("{:.1f}", value);
  if (out.size() > 2 && out.compare(out.size() - 2, 2, ".0") == 0) {
    out.resize(out.size() - 2);
  }
  return out == "-0" ? "0" : out;
}

struct Frame {
  double left, right, top, bottom;  // of the plot area
  Scale x, y;
  double px_of(double value) const { return left + x.place(value) * (right - left); }
  double py_of(double value) const { return bottom - y.place(value) * (bottom - top); }
  bool holds(double vx, double vy) const { return x.shows(vx) && y.shows(vy); }
};

int color_of(const ChartSeries& s, std::size_t index) {
  return s.color >= 0 ? s.color % kColors : int(index) % kColors;
}

// ---- stacks ------------------------------------------------------------------------------------

// Areas on shared columns: x, and for each area its lower and upper edge.
struct Stack {
  std::vector<double> x;
  std::vector<std::vector<double>> edges;  // areas + 1 of them
};

// Means per column, so that the parts of each column still add up.
Stack stack(const std::vector<const ChartSeries*>& areas, const Scale& scale, int columns) {
  Stack out;
  out.edges.resize(areas.size() + 1);
  const std::size_t n = areas.front()->x.size();
  const bool whole = n <= std::size_t(columns);
  std::size_t i = 0;
  while (i < n) {
    const auto column = [&](std::size_t k) {
      return std::floor(scale.place(areas.front()->x[k]) * columns);
    };
    std::size_t j = i + 1;
    while (!whole && j < n && column(j) == column(i)) {
      ++j;
    }
    const double count = double(j - i);
    double x = 0;
    double edge = 0;
    for (std::size_t k = i; k < j; ++k) {
      x += areas.front()->x[k] / count;
    }
    out.x.push_back(x);
    out.edges[0].push_back(0);
    for (std::size_t a = 0; a < areas.size(); ++a) {
      for (std::size_t k = i; k < j; ++k) {
        const double y = areas[a]->y[k];
        edge += std::isfinite(y) ? std::max(0.0, y) / count : 0;
      }
      out.edges[a + 1].push_back(edge);
    }
    i = j;
  }
  return out;
}

// ---- drawing -----------------------------------------------------------------------------------

class Drawing {
 public:
  Drawing(const Chart& chart, int plot_columns) : c_(chart), columns_(plot_columns) {
    for (const ChartSeries& s : c_.series) {
      check(s.x.size() == s.y.size() && (s.mark != Mark::kBand || s.y2.size() == s.y.size()),
            "chart '{}': series '{}' has {} x and {} y; as many are needed", c_.title, s.name,
            s.x.size(), s.y.size());
      if (s.mark == Mark::kArea && !s.x.empty()) {
        check(areas_.empty() || areas_.front()->x.size() == s.x.size(),
              "chart '{}': stacked areas share their x", c_.title);
        areas_.push_back(&s);
      }
    }
  }

  std::string body() {
    legend();
    f_.left = 66;
    f_.right = c_.width - 18;
    f_.top = legend_bottom_ + 8;
    f_.bottom = c_.height - 42;
    scales();
    grid();
    notes(false);
    for (std::size_t i = 0; i < c_.series.size(); ++i) {
      if (c_.series[i].mark == Mark::kBand) {
        band(c_.series[i], color_of(c_.series[i], i));
      }
    }
    stacked();
    hover();
    for (std::size_t i = 0; i < c_.series.size(); ++i) {
      if (c_.series[i].mark == Mark::kLine) {
        line(c_.series[i], color_of(c_.series[i], i));
      }
    }
    for (std::size_t i = 0; i < c_.series.size(); ++i) {
      if (c_.series[i].mark == Mark::kPoints) {
        points(c_.series[i], color_of(c_.series[i], i));
      }
    }
    notes(true);
    return std::move(out_);
  }

 private:
  void legend() {
    double x = 66;
    double y = 32;
    std::string spans;
    for (std::size_t i = 0; i < c_.series.size(); ++i) {
      const ChartSeries& s = c_.series[i];
      if (s.name.empty()) {
        continue;
      }
      const std::string name = s.name.size() > 40 ? s.name.substr(0, 40) : s.name;
      const double width = 18 + kLetter * double(name.size()) + 12;
      if (x + width > c_.width - 10 && x > 66) {
        x = 66;
        y += 16;
      }
      const int color = color_of(s, i);
      if (s.mark == Mark::kPoints) {
        spans += format("<circle class=\"f{}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>", color, px(x + 6),
                        px(y - 4));
      } else if (s.mark == Mark::kLine) {
        spans += format("<path class=\"l s{}{}\" d=\"M{} {}h12\"/>", color, s.dashed ? " d" : "",
                        px(x), px(y - 4));
      } else {
        spans += format("<rect class=\"{}f{}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"9\"/>",
                        s.mark == Mark::kBand ? "b " : "", color, px(x), px(y - 9));
      }
      spans += format("<text x=\"{}\" y=\"{}\">{}</text>", px(x + 16), px(y), text_of(name, 44));
      x += width;
    }
    out_ += format("<text class=\"t\" x=\"66\" y=\"15\">{}</text>{}", text_of(c_.title), spans);
    legend_bottom_ = spans.empty() ? 18 : y;
  }

  void scales() {
    Extent x;
    Extent y;
    for (const ChartSeries& s : c_.series) {
      for (std::size_t i = 0; i < s.x.size(); ++i) {
        if (!std::isfinite(s.x[i]) || (c_.x.log && s.x[i] <= 0)) {
          continue;
        }
        x.add(s.x[i], c_.x.log);
        if (s.mark != Mark::kArea) {
          y.add(s.y[i], c_.y.log);
          if (s.mark == Mark::kBand) {
            y.add(s.y2[i], c_.y.log);
          }
        }
      }
    }
    if (!areas_.empty()) {
      y.add(0, c_.y.log);
      for (std::size_t i = 0; i < areas_.front()->x.size(); ++i) {
        double sum = 0;
        for (const ChartSeries* a : areas_) {
          sum += std::isfinite(a->y[i]) ? std::max(0.0, a->y[i]) : 0;
        }
        y.add(sum, c_.y.log);
      }
    }
    for (const ChartNote& n : c_.notes) {
      x.add(n.x, c_.x.log);
      if (n.x2) {
        x.add(*n.x2, c_.x.log);
      }
    }
    f_.x = Scale(c_.x, x, false, std::max(3, c_.width / 90));
    f_.y = Scale(c_.y, y, true, std::max(3, c_.height / 50));
  }

  void grid() {
    std::string lines;
    std::string texts;
    for (const double v : f_.y.ticks()) {
      const std::string y = px(f_.py_of(v));
      lines += format("M{} {}H{}", px(f_.left), y, px(f_.right));
      texts += format("<text class=\"e\" x=\"{}\" y=\"{}\" dy=\".35em\">{}</text>", px(f_.left - 6),
                      y, text_of(unit_text(v, c_.y.unit)));
    }
    for (const double v : f_.x.ticks()) {
      const std::string x = px(f_.px_of(v));
      lines += format("M{} {}V{}", x, px(f_.top), px(f_.bottom));
      texts += format("<text class=\"m\" x=\"{}\" y=\"{}\">{}</text>", x, px(f_.bottom + 15),
                      text_of(unit_text(v, c_.x.unit)));
    }
    out_ += format("<path class=\"g\" d=\"{}\"/>{}", lines, texts);
    out_ += format("<text class=\"m\" x=\"{}\" y=\"{}\">{}</text>", px((f_.left + f_.right) / 2),
                   px(f_.bottom + 33), text_of(c_.x.title));
    out_ += format("<text class=\"m\" transform=\"translate(12 {})rotate(-90)\">{}</text>",
                   px((f_.top + f_.bottom) / 2), text_of(c_.y.title));
  }

  // Bands lie under the data, lines and labels over it.
  void notes(bool over) {
    double label_y = f_.top + 11;
    for (const ChartNote& n : c_.notes) {
      if (!f_.x.shows(n.x) || (n.x2 && !f_.x.shows(*n.x2))) {
        continue;
      }
      const double x = f_.px_of(n.x);
      if (n.x2 && !over) {
        out_ += format("<rect class=\"n\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>", px(x),
                       px(f_.top), px(std::max(1.0, f_.px_of(*n.x2) - x)), px(f_.bottom - f_.top));
      }
      if (!over) {
        continue;
      }
      if (!n.x2) {
        out_ += format("<path class=\"v{}\" d=\"M{} {}V{}\"><title>{}</title></path>",
                       n.strong ? " w" : "", px(x), px(f_.top), px(f_.bottom), text_of(n.label));
      }
      if (!n.label.empty() && c_.notes.size() <= 8) {
        const bool flip =
            x > f_.right - kLetter * double(std::min(n.label.size(), std::size_t(40)));
        out_ += format("<text class=\"k{}\" x=\"{}\" y=\"{}\">{}</text>", flip ? " e" : "",
                       px(x + (flip ? -4 : 4)), px(label_y), text_of(n.label, 48));
        label_y += 13;
      }
    }
  }

  void line(const ChartSeries& s, int color) {
    const Thinned t = thin(s.x, s.y, columns_, c_.x.log);
    std::string path;
    bool pen_down = false;
    std::size_t run = 0;
    for (std::size_t i = 0; i < t.x.size(); ++i) {
      if (!f_.holds(t.x[i], t.y[i])) {
        pen_down = false;
        continue;
      }
      const std::string at = px(f_.px_of(t.x[i])) + " " + px(f_.py_of(t.y[i]));
      run = pen_down ? run + 1 : 1;
      path += (pen_down ? "L" : "M") + at;
      // A point between two gaps would not be seen.
      const bool alone = run == 1 && (i + 1 == t.x.size() || !f_.holds(t.x[i + 1], t.y[i + 1]));
      path += alone ? "h.1" : "";
      pen_down = true;
    }
    if (!path.empty()) {
      out_ += format("<path class=\"l s{}{}\" d=\"{}\"/>", color, s.dashed ? " d" : "", path);
    }
  }

  void points(const ChartSeries& s, int color) {
    const std::size_t most = 2000;
    const std::size_t step = std::max<std::size_t>(1, (s.x.size() + most - 1) / most);
    const bool titles = s.x.size() <= 200;
    for (std::size_t i = 0; i < s.x.size(); i += step) {
      if (!f_.holds(s.x[i], s.y[i])) {
        continue;
      }
      out_ += format("<circle class=\"f{}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"", color,
                     px(f_.px_of(s.x[i])), px(f_.py_of(s.y[i])));
      if (!titles) {
        out_ += "/>";
        continue;
      }
      std::string title = format("{}{}{}: {}", s.name, s.name.empty() ? "" : " ",
                                 unit_text(s.x[i], c_.x.unit), unit_text(s.y[i], c_.y.unit));
      if (i < s.labels.size() && !s.labels[i].empty()) {
        title += ", " + s.labels[i];
      }
      out_ += format("><title>{}</title></circle>", text_of(title, 300));
    }
  }

  void band(const ChartSeries& s, int color) {
    const Thinned low = thin(s.x, s.y, columns_ / 2, c_.x.log);
    const Thinned high = thin(s.x, s.y2, columns_ / 2, c_.x.log);
    polygon("b f", color, low.x, low.y, high.x, high.y);
  }

  void stacked() {
    if (areas_.empty()) {
      return;
    }
    stack_ = stack(areas_, f_.x, std::min(columns_, 400));
    for (std::size_t a = 0; a < areas_.size(); ++a) {
      const auto index = std::size_t(areas_[a] - c_.series.data());
      polygon("f", color_of(*areas_[a], index), stack_.x, stack_.edges[a], stack_.x,
              stack_.edges[a + 1]);
    }
  }

  void polygon(const char* style, int color, const std::vector<double>& x1,
               const std::vector<double>& y1, const std::vector<double>& x2,
               const std::vector<double>& y2) {
    std::string path;
    for (std::size_t i = 0; i < x1.size(); ++i) {
      append(path, x1[i], y1[i]);
    }
    for (std::size_t i = x2.size(); i-- > 0;) {
      append(path, x2[i], y2[i]);
    }
    if (!path.empty()) {
      out_ += format("<path class=\"{}{}\" d=\"{}Z\"/>", style, color, path);
    }
  }
  void append(std::string& path, double x, double y) const {
    if (f_.x.shows(x) && std::isfinite(y)) {
      // What a logarithmic axis cannot show lies below it.
      const bool below = c_.y.log && y <= 0;
      const double edge = below ? f_.bottom : std::clamp(f_.py_of(y), f_.top, f_.bottom);
      path += (path.empty() ? "M" : "L") + px(f_.px_of(x)) + " " + px(edge);
    }
  }

  // Strips over the plot that name every line's value there.
  void hover() {
    std::vector<double> at;
    for (const ChartSeries& s : c_.series) {
      if (s.mark == Mark::kLine || s.mark == Mark::kArea) {
        const std::size_t step = std::max<std::size_t>(1, s.x.size() / kHoverStrips);
        for (std::size_t i = 0; i < s.x.size(); i += step) {
          if (f_.x.shows(s.x[i])) {
            at.push_back(s.x[i]);
          }
        }
      }
    }
    std::sort(at.begin(), at.end());
    std::vector<double> kept;
    const double apart = (f_.right - f_.left) / kHoverStrips;
    for (const double x : at) {
      if (kept.empty() || f_.px_of(x) - f_.px_of(kept.back()) >= apart) {
        kept.push_back(x);
      }
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const double here = f_.px_of(kept[i]);
      const double from = i == 0 ? f_.left : (f_.px_of(kept[i - 1]) + here) / 2;
      const double to = i + 1 == kept.size() ? f_.right : (here + f_.px_of(kept[i + 1])) / 2;
      out_ += format("<rect class=\"h\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}",
                     px(from), px(f_.top), px(std::max(0.5, to - from)), px(f_.bottom - f_.top),
                     text_of(unit_text(kept[i], c_.x.unit) + values_at(kept[i]), 600));
      out_ += "</title></rect>";
    }
  }
  std::string values_at(double x) const {
    std::string out;
    for (const ChartSeries& s : c_.series) {
      if ((s.mark != Mark::kLine && s.mark != Mark::kArea) || s.x.empty()) {
        continue;
      }
      auto next = std::lower_bound(s.x.begin(), s.x.end(), x);
      if (next == s.x.end() || (next != s.x.begin() && x - *(next - 1) < *next - x)) {
        --next;
      }
      const double y = s.y[std::size_t(next - s.x.begin())];
      if (std::isfinite(y)) {
        out += format("; {}{}{}", s.name, s.name.empty() ? "" : " ", unit_text(y, c_.y.unit));
      }
    }
    return out;
  }

  const Chart& c_;
  int columns_;
  std::vector<const ChartSeries*> areas_;
  Stack stack_;
  Frame f_{};
  double legend_bottom_ = 0;
  std::string out_;
};

std::string svg(const Chart& chart, const std::string& attributes, const std::string& style) {
  std::string out =
      format("<svg {}class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
             attributes, chart.width, chart.height, text_of(chart.title));
  out += style;
  if (!chart.description.empty()) {
    out += format("<desc>{}</desc>", text_of(chart.description, 1000));
  }
  return out + Drawing(chart, std::max(100, chart.width - 84)).body() + "</svg>";
}

// Colours that people with the usual colour deficiencies tell apart, for light and dark pages.
constexpr std::array<const char*, kColors> kLight = {"#1f6fb2", "#c75000", "#00826a", "#a0458a",
                                                     "#8a6d00", "#3f8fc9", "#b3263b", "#666666"};
constexpr std::array<const char*, kColors> kDark = {"#6db3ef", "#ff9a4d", "#3ecfae", "#e08cc9",
                                                    "#e0c04a", "#9fd0f5", "#ff7d8c", "#aaaaaa"};

std::string palette(const std::array<const char*, kColors>& colors) {
  std::string out;
  for (int i = 0; i < kColors; ++i) {
    out += format("--c{}:{};", i, colors[std::size_t(i)]);
  }
  return out;
}

}  // namespace

std::string chart_style() {
  std::string out = format(".chart{{{}}", palette(kLight));
  out += format("@media (prefers-color-scheme:dark){{.chart{{{}}}}}", palette(kDark));
  out +=
      // Paper is white whatever the screen is.
      format("@media print{{.chart{{{}}}}}", palette(kLight)) +
      ".chart{width:100%;height:auto;font:11px system-ui,sans-serif;fill:currentColor}"
      ".chart .t{font-size:13px;font-weight:600}.chart .m{text-anchor:middle}"
      ".chart .e{text-anchor:end}.chart .g{stroke:currentColor;stroke-opacity:.13;fill:none}"
      ".chart "
      ".l{fill:none;pointer-events:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:"
      "round}"
      ".chart .d{stroke-dasharray:5 4}.chart .b{fill-opacity:.2}"
      ".chart .n{fill:currentColor;fill-opacity:.07}"
      ".chart .v{stroke:currentColor;stroke-opacity:.55;stroke-dasharray:2 3;fill:none}"
      ".chart .w{stroke-opacity:1;stroke-dasharray:none;stroke-width:1.5}"
      ".chart .k{font-size:10px;fill-opacity:.8}"
      ".chart .h{fill:currentColor;fill-opacity:0}.chart .h:hover{fill-opacity:.09}";
  for (int i = 0; i < kColors; ++i) {
    out += format(".chart .s{}{{stroke:var(--c{})}.chart .f{}{{fill:var(--c{})}", i, i, i, i);
  }
  return out;
}

std::string svg_inline(const Chart& chart) {
  return svg(chart, "", "");
}

std::string svg_file(const Chart& chart) {
  return svg(chart,
             format("xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" ", chart.width,
                    chart.height),
             "<style>:root{color-scheme:light dark;color:#222;background:#fff}"
             "@media (prefers-color-scheme:dark){:root{color:#ddd;background:#16181b}}"
             "@media print{:root{color:#000;background:#fff}}" +
                 chart_style() + "</style>") +
         "\n";
}

std::string unit_text(double value, Unit unit) {
  if (!std::isfinite(100 * value)) {
    return "-";
  }
  if (value == 0) {
    return "0";
  }
  switch (unit) {
    case Unit::kPlain: return format("{:.4g}", value);
    case Unit::kPercent: return format("{:.3g} %", 100 * value);
    case Unit::kSeconds: return value < 0 ? "-" + seconds_text(-value) : seconds_text(value);
    case Unit::kBytes: return bytes_text(value);
    case Unit::kBytesPerSecond: return rate_cell(value);
    case Unit::kCount: return count_text(value);
  }
  return "";
}

Thinned thin(const std::vector<double>& x, const std::vector<double>& y, int columns, bool log_x) {
  if (x.size() <= 4 * std::size_t(columns)) {
    return {x, y};
  }
  const auto place = [&](double value) {
    return log_x ? std::log(std::max(value, 1e-300)) : value;
  };
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double v : x) {
    if (std::isfinite(v) && (!log_x || v > 0)) {
      low = std::min(low, place(v));
      high = std::max(high, place(v));
    }
  }
  const double per = high > low ? double(columns) / (high - low) : 0;
  Thinned out;
  const auto put = [&](std::size_t i) {
    out.x.push_back(x[i]);
    out.y.push_back(y[i]);
  };
  std::size_t i = 0;
  while (i < x.size()) {
    const double column = std::floor((place(x[i]) - low) * per);
    std::array<std::size_t, 4> kept = {i, i, i, i};  // first, smallest, largest, last
    bool gap = false;
    std::size_t j = i;
    bool any = false;
    for (; j < x.size() && (j == i || std::floor((place(x[j]) - low) * per) == column); ++j) {
      if (!std::isfinite(y[j])) {
        gap = true;
        continue;
      }
      if (!any) {
        kept = {j, j, j, j};
        any = true;
      }
      kept[1] = y[j] < y[kept[1]] ? j : kept[1];
      kept[2] = y[j] > y[kept[2]] ? j : kept[2];
      kept[3] = j;
    }
    if (any) {
      std::sort(kept.begin(), kept.end());
      for (std::size_t k = 0; k < kept.size(); ++k) {
        if (k == 0 || kept[k] != kept[k - 1]) {
          put(kept[k]);
        }
      }
    } else if (gap) {
      put(i);
    }
    i = j;
  }
  return out;
}

}  // namespace penstock::measure
