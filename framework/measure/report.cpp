#include "framework/measure/report.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "framework/core/format.h"
#include "framework/measure/escape.h"
#include "framework/measure/report_charts.h"

namespace penstock::measure {
namespace {

// What the page may hold, so that it stays under 2 MB; sections beyond it are named, not shown.
constexpr std::size_t kPageBytes = 1'900'000;
constexpr std::size_t kSeriesBytes = 900'000;
constexpr std::size_t kRows = 60;
constexpr std::size_t kConfigBytes = 64 * 1024;
constexpr std::size_t kMostCurves = 8;
constexpr std::size_t kMostPlots = 16;
constexpr std::size_t kMostLines = 8;

std::string text_of(std::string_view text, std::size_t limit = 400) {
  return escape(text, Syntax::kMarkup, limit);
}

std::string paragraph(std::string_view text, const char* style = "") {
  return text.empty() ? ""
                      : format("<p{}{}{}>{}</p>\n", *style != '\0' ? " class=\"" : "", style,
                               *style != '\0' ? "\"" : "", text_of(text, 2000));
}

// The first and last rows and evenly spaced ones between.
TextTable shortened(const TextTable& table, std::size_t rows) {
  if (table.rows.size() <= rows) {
    return table;
  }
  TextTable out{.columns = table.columns, .rows = {}};
  for (std::size_t k = 0; k < rows; ++k) {
    out.rows.push_back(table.rows[k * (table.rows.size() - 1) / (rows - 1)]);
  }
  return out;
}

std::string html(const TextTable& whole) {
  const TextTable table = shortened(whole, kRows);
  // A column in which nothing was measured says nothing.
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < table.columns.size() && columns.size() < 24; ++c) {
    if (c == 0 || std::any_of(table.rows.begin(), table.rows.end(),
                              [c](const auto& row) { return c < row.size() && !row[c].empty(); })) {
      columns.push_back(c);
    }
  }
  const auto align = [&](std::size_t c) {
    return table.columns[c].align == Align::kLeft ? " class=\"a\"" : "";
  };
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::size_t c : columns) {
    out += format("<th{} scope=\"col\">{}</th>", align(c), text_of(table.columns[c].title, 120));
  }
  out += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (const std::size_t c : columns) {
      const bool has = c < row.size() && !row[c].empty();
      out += format("<td{}>{}</td>", align(c), has ? text_of(row[c]) : std::string("-"));
    }
    out += "</tr>\n";
  }
  out += "</tbody></table></div>";
  if (table.rows.size() < whole.rows.size()) {
    out += format("<p class=\"small\">{} of {} rows, evenly spaced.</p>", table.rows.size(),
                  whole.rows.size());
  }
  return out + "\n";
}

std::string folded(const char* title, const TextTable& table) {
  if (table.rows.empty()) {
    return "";
  }
  return format("<details{}><summary>{}</summary>{}</details>\n",
                table.rows.size() <= 12 ? " open" : "", title, html(table));
}

std::string figure(const std::optional<Chart>& chart, const TextTable& table) {
  if (!chart) {
    return "";
  }
  return format("<figure>{}</figure>\n{}", svg_inline(*chart), folded("Table", table));
}
std::string figure(const std::optional<Chart>& chart) {
  return chart ? figure(chart, values_table(*chart, 25)) : "";
}

// ---- sections ----------------------------------------------------------------------------------

// What a curve says, in words.
std::vector<std::string> words_of(const Curve& curve) {
  std::vector<std::string> out;
  double best = 0;
  double chosen = 0;
  for (const CurvePoint& p : curve.points) {
    best = std::max(best, p.samples_per_second);
    chosen = curve.chosen == p.batch ? p.samples_per_second : chosen;
  }
  if (curve.chosen && chosen > 0) {
    out.push_back(
        format("Batch {} was chosen: {} samples a second, {:.0f} % of the largest "
               "throughput measured.",
               *curve.chosen, speed_text(chosen), 100 * chosen / best));
  } else if (curve.chosen) {
    out.push_back(format("Batch {} was chosen.", *curve.chosen));
  }
  if (curve.knee) {
    std::string text =
        format("The knee, the smallest batch that reaches 95 % of the best, is {}", *curve.knee);
    if (curve.knee_interval) {
      text +=
          format(" (between {} and {})", curve.knee_interval->first, curve.knee_interval->second);
    }
    out.push_back(text + ".");
  }
  if (curve.half_batch) {
    const double half = std::max(0.0, *curve.half_batch);
    std::string text =
        format("Half of the largest possible throughput is reached at batch {:.3g} (B_half)", half);
    if (curve.chosen && double(*curve.chosen) + half > 0) {
      text += format("; at batch {}, {:.0f} % of a step is fixed cost", *curve.chosen,
                     100 * half / (double(*curve.chosen) + half));
    }
    out.push_back(text + ".");
  }
  if (curve.gain_knee) {
    out.push_back(
        format("From batch {} on, doubling the batch gains less than 15 %.", *curve.gain_knee));
  }
  if (curve.elastic_knee) {
    out.push_back(format("From batch {} on, less than a quarter of a step is fixed cost.",
                         *curve.elastic_knee));
  }
  if (curve.memory_wall) {
    out.push_back(format("Memory ends the curve at batch {}.", *curve.memory_wall));
  }
  if (!curve.reason.empty()) {
    out.push_back(curve.reason);
  }
  return out;
}

std::string curves_section(const ReportData& d) {
  const std::vector<Curve> curves(
      d.curves.begin(), d.curves.begin() + std::ptrdiff_t(std::min(d.curves.size(), kMostCurves)));
  const auto chart = curve_chart(curves);
  if (!chart) {
    return "";
  }
  std::string out;
  for (const std::string& text : words_of(curves.front())) {
    out += paragraph(text);
  }
  out += figure(chart, curve_table(curves.front()));
  out += figure(curve_share_chart(curves.front()));
  out += figure(curve_account_chart(curves.front()));
  out += figure(curve_memory_chart(curves.front()));
  for (std::size_t i = 1; i < curves.size(); ++i) {
    out += format("<h3>{}</h3>\n", text_of(curves[i].name.empty() ? "curve" : curves[i].name));
    for (const std::string& text : words_of(curves[i])) {
      out += paragraph(text);
    }
    out += folded("Table", curve_table(curves[i]));
  }
  return out;
}

std::string verdict_section(const Verdict& v) {
  std::string out = format("<p class=\"verdict\">{}</p>\n", text_of(v.name()));
  out += paragraph(v.headline);
  TextTable remedies{.columns = {{"change", Align::kLeft},
                                 {"to", Align::kLeft},
                                 {"because", Align::kLeft},
                                 {"faster by, predicted"}},
                     .rows = {}};
  for (const Remedy& r : v.remedies) {
    remedies.rows.push_back({r.key, r.value, r.why, percent_cell(r.gain)});
  }
  if (!remedies.rows.empty()) {
    out += "<h3>What to change</h3>\n" + html(remedies);
  }
  if (!v.advice.empty()) {
    out += "<ul>";
    for (const std::string& a : v.advice) {
      out += format("<li>{}</li>", text_of(a, 1000));
    }
    out += "</ul>\n";
  }
  out += "<h3>If one part vanished</h3>\n" + html(alternatives_table(v));
  return out + "<h3>Evidence</h3>\n" + html(evidence_table(v));
}

std::string time_section(const ReportData& d) {
  if (d.intervals.empty()) {
    return "";
  }
  StepAccount sum;
  for (const ReportInterval& i : d.intervals) {
    sum += i.account;
  }
  std::string out = paragraph(describe(sum));
  out += figure(account_chart(d.intervals), account_table(d.intervals));
  out += figure(throughput_chart(d.intervals));
  return out + figure(bandwidth_chart(d.intervals));
}

std::string series_section(const ReportData& d) {
  std::string out;
  std::size_t shown = 0;
  std::size_t left_out = 0;
  for (Chart& chart : series_charts(d.series)) {
    if (chart.series.size() > kMostLines) {
      chart.series.resize(kMostLines);
    }
    std::string one = shown < kMostPlots ? figure(chart) : "";
    if (one.empty() || out.size() + one.size() > kSeriesBytes) {
      ++left_out;
      continue;
    }
    ++shown;
    out += one;
  }
  return left_out == 0 ? out
                       : out + format(
                                   "<p class=\"small\">{} more plots are left out; metrics.jsonl "
                                   "has their values.</p>\n",
                                   left_out);
}

std::string tuning_section(const ReportData& d) {
  if (d.decisions.empty()) {
    return "";
  }
  const TextTable table = decisions_table(d.decisions);
  const auto chart = knobs_chart(d.intervals, d.decisions);
  return chart ? figure(chart, table) : html(table);
}

std::string roofline_section(const ReportData& d) {
  return d.roofline ? figure(roofline_chart(*d.roofline), roofline_table(*d.roofline)) : "";
}

std::string profile_section(const ReportData& d) {
  if (!d.profile || d.profile->rows.empty()) {
    return "";
  }
  return paragraph(d.profile->summary()) + html(d.profile->table());
}

std::string facts_section(const ReportData& d) {
  TextTable table{.columns = {{"", Align::kLeft}, {"", Align::kLeft}}, .rows = {}};
  for (const ReportFact& f : d.facts) {
    table.rows.push_back({f.name, f.value});
  }
  return table.rows.empty() ? "" : html(table);
}

std::string config_section(const ReportData& d) {
  if (d.config.empty()) {
    return "";
  }
  // Line by line, because escape() makes one line of its text.
  std::string lines;
  std::string_view rest = std::string_view(d.config).substr(0, kConfigBytes);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    lines += escape(rest.substr(0, end), Syntax::kMarkup, kConfigBytes) + "\n";
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (d.config.size() > kConfigBytes) {
    lines += "...\n";
  }
  return format("<details><summary>config.resolved.yaml</summary><pre>{}</pre></details>\n", lines);
}

constexpr std::string_view kWords =
    "<dl><dt>DRAM bandwidth</dt><dd>Bytes a second read from and written to the device's memory. "
    "Source <b>gpm</b>: the device's own counters, all processes. Source <b>ledger</b>: the bytes "
    "that our own ops must move, over time. A dash means that nothing was measured.</dd>"
    "<dt>of achievable</dt><dd>Share of what a long triad reaches on this device; 100 % means that "
    "nothing is left.</dd>"
    "<dt>data wait</dt><dd>The device was idle while the loop waited for a batch.</dd>"
    "<dt>exposed copies</dt><dd>The device was idle while the next input was copied to it.</dd>"
    "<dt>launch gaps</dt><dd>The device was idle because the host had not launched the next "
    "kernel.</dd>"
    "<dt>knee</dt><dd>The smallest batch that reaches 95 % of the best throughput.</dd>"
    "<dt>B_half</dt><dd>The batch at which half of a step is fixed cost: throughput = limit x "
    "B / (B + B_half).</dd></dl>\n";

constexpr std::string_view kStyle =
    ":root{color-scheme:light dark;--ink:#222;--paper:#fff;--faint:#6668;--box:#f4f5f6}"
    "@media (prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#16181b;--box:#22262a}}"
    "@media print{:root{color-scheme:light;--ink:#000;--paper:#fff;--box:#fff}"
    "details::details-content{content-visibility:visible;block-size:auto}"
    "figure,tr{break-inside:avoid}h2,h3{break-after:avoid}.scroll{overflow:visible}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:920px;margin:0 auto;padding:16px}"
    "h1{font-size:24px;margin:8px 0 0}h2{font-size:19px;margin:36px 0 8px;"
    "border-bottom:1px solid var(--faint)}h3{font-size:15px;margin:18px 0 4px}"
    "p{margin:6px 0;overflow-wrap:anywhere}.small{font-size:12px;opacity:.8}"
    ".lead{background:var(--box);padding:10px 14px;border-left:4px solid #1f6fb2;margin:14px 0}"
    ".warn{border-left-color:#c75000}.verdict{font-size:18px;font-weight:600}"
    "figure{margin:14px 0 4px}.scroll{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:12.5px;font-variant-numeric:tabular-nums;margin:4px "
    "0}"
    "th,td{padding:2px 8px;text-align:right;border-bottom:1px solid #8883;vertical-align:top}"
    "td{white-space:nowrap}th{vertical-align:bottom}"
    "th.a,td.a{text-align:left}td.a{white-space:normal;max-width:420px;overflow-wrap:break-word}"
    "summary{cursor:pointer;font-size:13px;opacity:.85}"
    "pre{font-size:12px;background:var(--box);padding:10px;overflow-x:auto;white-space:pre-wrap;"
    "overflow-wrap:anywhere}dt{font-weight:600}dd{margin:0 0 6px 18px}";

}  // namespace

std::string report_html(const ReportData& d) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      // Whatever slipped into the page could neither run nor load anything.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n";
  if (d.live) {
    out += format("<meta http-equiv=\"refresh\" content=\"{}\">\n",
                  std::clamp(d.refresh_seconds, 1, 3600));
  }
  out += format("<title>{}</title>\n<style>{}{}</style></head>\n<body>\n",
                text_of(d.title.empty() ? "Penstock run" : d.title, 200), kStyle, chart_style());
  out += format("<header><h1>{}</h1>{}", text_of(d.title.empty() ? "Penstock run" : d.title, 200),
                paragraph(d.subtitle));
  if (d.live) {
    out += format("<p class=\"small\">The run goes on; this page reloads every {} s.</p>",
                  std::clamp(d.refresh_seconds, 1, 3600));
  }
  out += "</header>\n<main>\n";

  std::string lead;
  for (std::size_t i = 0; i < std::min<std::size_t>(d.summary.size(), 20); ++i) {
    lead += paragraph(d.summary[i]);
  }
  if (lead.empty() && d.verdict) {
    lead = paragraph(d.verdict->headline);
  }
  if (!lead.empty()) {
    out += "<section class=\"lead\">" + lead + "</section>\n";
  }
  std::string warnings;
  for (std::size_t i = 0; i < std::min<std::size_t>(d.warnings.size(), 30); ++i) {
    warnings += paragraph("Warning: " + d.warnings[i]);
  }
  if (!warnings.empty()) {
    out += "<section class=\"lead warn\">" + warnings + "</section>\n";
  }

  std::string left_out;
  const auto section = [&](const std::string& title, const std::string& body) {
    if (body.empty()) {
      return;
    }
    if (out.size() + body.size() > kPageBytes) {
      left_out += (left_out.empty() ? "" : ", ") + title.substr(0, 100);
      return;
    }
    out += format("<section><h2>{}</h2>\n{}</section>\n", text_of(title, 200), body);
  };
  section("What limits this run", d.verdict ? verdict_section(*d.verdict) : "");
  section("Batch", curves_section(d));
  section("Time and bandwidth", time_section(d));
  section("Training", series_section(d));
  section("Tuning decisions", tuning_section(d));
  section("Memory", d.memory.empty() ? "" : html(memory_table(d.memory)));
  section("Roofline", roofline_section(d));
  section("Ops", profile_section(d));
  for (std::size_t i = 0; i < std::min<std::size_t>(d.tables.size(), 40); ++i) {
    section(d.tables[i].first, d.tables[i].second.rows.empty() ? "" : html(d.tables[i].second));
  }
  section("Run", facts_section(d) + config_section(d));
  section("Words", std::string(kWords));
  if (!left_out.empty()) {
    out += paragraph("Left out, because the page would be too large: " + left_out + ".", "small");
  }
  return out + "</main>\n</body></html>\n";
}

std::string curve_svg(const std::vector<Curve>& curves) {
  const auto chart = curve_chart(curves);
  return chart ? svg_file(*chart) : "";
}

}  // namespace penstock::measure
