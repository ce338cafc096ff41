#include "framework/measure/table.h"

#include <algorithm>

#include "framework/core/format.h"

namespace penstock::measure {
namespace {

// Columns of a terminal that a UTF-8 string takes, near enough: its characters.
std::size_t width(const std::string& text) {
  return std::size_t(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string TextTable::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    widths.push_back(width(columns[c].title));
    for (const auto& row : rows) {
      widths[c] = std::max(widths[c], c < row.size() ? width(row[c]) : 1);
    }
  }
  std::string out;
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string value = cell_of(c);
      const std::string pad(widths[c] - std::min(widths[c], width(value)), ' ');
      text += c > 0 ? "  " : "";
      text += columns[c].align == Align::kRight ? pad + value : value + pad;
    }
    text.resize(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t c) { return columns[c].title; });
  for (const auto& row : rows) {
    line([&](std::size_t c) {
      return c < row.size() && !row[c].empty() ? row[c] : std::string("-");
    });
  }
  return out;
}

std::string cell(const std::optional<double>& value, const char* spec) {
  return value ? format(spec, *value) : "";
}

std::string percent_cell(const std::optional<double>& share) {
  return share ? format("{:.1f} %", 100 * *share) : "";
}

std::string rate_cell(const std::optional<double>& rate) {
  if (!rate) {
    return "";
  }
  return *rate >= 1e12  ? format("{:.3g} TB/s", *rate / 1e12)
         : *rate >= 1e9 ? format("{:.3g} GB/s", *rate / 1e9)
                        : format("{:.3g} MB/s", *rate / 1e6);
}

std::string flops_cell(const std::optional<double>& rate) {
  if (!rate) {
    return "";
  }
  const std::string text = count_text(*rate);
  const std::size_t digits = text.find_first_not_of("0123456789.e+-");
  return digits == std::string::npos
             ? text + " FLOP/s"
             : format("{} {}FLOP/s", text.substr(0, digits), text.substr(digits));
}

std::string seconds_cell(const std::optional<double>& seconds) {
  return seconds ? seconds_text(*seconds) : "";
}

std::string bytes_cell(const std::optional<double>& bytes) {
  return bytes ? bytes_text(*bytes) : "";
}

std::string count_cell(const std::optional<double>& count) {
  return count ? count_text(*count) : "";
}

}  // namespace penstock::measure
