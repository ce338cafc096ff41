// A small table of text: what the terminal, the report and the profile print alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::measure {

enum class Align : std::uint8_t { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
};

// Rows of as many cells as there are columns. An empty cell is a value that was not measured.
struct TextTable {
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;

  // Lines of aligned columns with two spaces between them; an empty cell shows as "-".
  std::string text() const;
};

// Cells. None gives the empty cell.
std::string cell(const std::optional<double>& value, const char* spec = "{:.3g}");
std::string percent_cell(const std::optional<double>& share);           // 0.384 -> "38.4 %"
std::string rate_cell(const std::optional<double>& bytes_per_second);   // "2.91 TB/s" (decimal)
std::string flops_cell(const std::optional<double>& flops_per_second);  // "412 TFLOP/s"
std::string seconds_cell(const std::optional<double>& seconds);         // "1.24 ms"
std::string bytes_cell(const std::optional<double>& bytes);             // "1.5 GiB"
std::string count_cell(const std::optional<double>& count);             // "9.84k"

}  // namespace penstock::measure
