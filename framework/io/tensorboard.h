// TensorBoard event files: scalars, text and histograms, in the record format of its readers
// (length, masked CRC-32C, protocol-buffer message, masked CRC-32C).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "framework/io/files.h"

namespace penstock::io {

// CRC-32C (Castagnoli) and the masked form that event files carry.
std::uint32_t crc32c(std::span<const std::byte> bytes);
std::uint32_t masked_crc32c(std::span<const std::byte> bytes);

// Counts of values in bins: limits[i] is the upper edge of bin i.
struct Histogram {
  double minimum = 0;
  double maximum = 0;
  double count = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::span<const double> limits;
  std::span<const double> counts;
};

// One event file of one session. Records are buffered and written whole, many at a time; a write
// that fails loses what was buffered, with one warning, and never the run.
class EventWriter {
 public:
  // Makes a new file in `folder`. A session that resumed at a step > 0 says so in it, and
  // TensorBoard drops the steps from there on that an earlier session had written. Throws
  // StorageError when the file cannot be made.
  EventWriter(const std::string& folder, i64 resumed_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // NaN and infinite values are written as they are.
  void scalar(std::string_view tag, float value, i64 step);
  void text(std::string_view tag, std::string_view markdown, i64 step);
  void histogram(std::string_view tag, const Histogram& values, i64 step);
  // Hands what is buffered to the system. Call it at every logging interval.
  void flush();

  const std::string& path() const { return path_; }
  // Records that could not be written.
  i64 lost() const { return lost_; }

 private:
  void record(std::string_view event);
  void summary(std::string_view value, i64 step);

  std::string path_;
  Descriptor fd_;
  std::string buffer_;
  i64 buffered_ = 0;  // records
  i64 written_ = 0;   // bytes of whole records in the file
  i64 lost_ = 0;
  bool broken_ = false;  // the file may end in half a record
};

}  // namespace penstock::io
