// Huffman decoding of a baseline JPEG scan, the part of a JPEG's decoding that takes most time:
// about 70 % of a crop's with the library's decoder. This one removes byte stuffing once, refills
// 64 bits at a time and finds most coefficients, value included, with one look-up; it needs a
// complete and correct scan, so damaged files are refused rather than guessed at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "framework/core/target.h"

namespace penstock::data::image {

// A Huffman table as JPEG states it: how many codes of each length (bits[1] to bits[16]), and their
// symbols in order of the codes.
struct HuffmanTable {
  const std::uint8_t* bits = nullptr;    // [17]
  const std::uint8_t* values = nullptr;  // [256]
};

// The blocks of an MCU in order: which component, which of the tables.
struct ScanLayout {
  static constexpr int kMaxBlocks = 10;
  static constexpr int kMaxComponents = 4;
  int blocks = 0;
  std::array<int, kMaxBlocks> component{};  // of each block
  std::array<HuffmanTable, kMaxComponents> dc{};
  std::array<HuffmanTable, kMaxComponents> ac{};
  int components = 0;
  i64 restart_interval = 0;  // MCUs; 0: none
  i64 mcus = 0;              // in the whole scan
};

using Block = std::int16_t[64];  // natural order, not yet dequantised

class JpegScan {
 public:
  // `data` begins with the scan's first entropy-coded byte. False when the tables or the markers
  // inside the scan are not as they should be.
  bool start(const ScanLayout& layout, std::span<const std::uint8_t> data);
  // Decodes the next MCU; blocks[i] must be zero. Null: passes over it. False when the data are
  // damaged or end too soon. Neither throws nor allocates.
  bool decode(Block* const* blocks);
  // After the last MCU: where the marker that ends the scan stands in `data`; -1 when bytes lie
  // between, or when MCUs are left.
  i64 end() const;

 private:
  static constexpr int kFastBits = 10;
  // A look-up entry: bits 0-5 the bits that it consumes, bit 6 set when `value` is the number of
  // bits that follow, bits 8-15 zeros before the coefficient, bits 16-31 its value.
  struct Table {
    std::array<std::uint32_t, 1 << kFastBits> fast{};
    std::array<std::int32_t, 18> last_code{};  // per length, left-aligned to 16 bits; exclusive
    std::array<std::int32_t, 17> first_value{};
    std::array<std::uint8_t, 256> values{};
  };
  struct Bits {
    std::uint64_t buffer = 0;
    const std::uint8_t* next = nullptr;
    unsigned count = 0;
  };

  static bool build(const HuffmanTable& from, bool dc, Table& to);
  bool unstuff(std::span<const std::uint8_t> data);
  bool begin_segment(std::size_t segment);
  template <bool kStore>
  bool decode_body(Block* const* blocks);
  bool decode_stored_v3(Block* const* blocks);
  bool decode_skipped_v3();
  static std::uint32_t long_code(const Table& table, std::uint32_t next);

  ScanLayout layout_;
  bool v3_ = false;  // the CPU's level
  std::array<Table, ScanLayout::kMaxComponents> dc_;
  std::array<Table, ScanLayout::kMaxComponents> ac_;
  std::array<int, ScanLayout::kMaxComponents> dc_table_{};  // of each component
  std::array<int, ScanLayout::kMaxComponents> ac_table_{};
  std::vector<std::uint8_t> bytes_;        // without stuffing
  std::vector<std::size_t> segment_ends_;  // restart intervals
  std::size_t segment_ = 0;
  const std::uint8_t* segment_end_ = nullptr;
  i64 marker_ = 0;
  i64 done_ = 0;
  i64 until_restart_ = 0;
  Bits bits_;
  std::array<std::int32_t, ScanLayout::kMaxComponents> last_dc_{};
};

}  // namespace penstock::data::image
