#include "data/image/jpeg_scan.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "framework/core/machine.h"

namespace penstock::data::image {
namespace {

constexpr std::uint32_t kLengthMask = 0x3F;
constexpr std::uint32_t kMoreBits = 0x40;
constexpr std::uint32_t kUnknown = kMoreBits;  // a code longer than the table, or none
constexpr std::uint32_t kEndOfBlock = 0xFF;    // as the number of zeros
// An MCU of 10 blocks of 64 symbols of at most 31 bits, and what a refill looks ahead.
constexpr std::size_t kPadding = 4096;
// A buffer that one huge file has grown is given back.
constexpr std::size_t kKeepBytes = std::size_t{64} << 20;

// Zigzag to natural order; runs past the end land on the last coefficient.
constexpr std::array<std::uint8_t, 80> kNatural = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
    40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
    29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

// The value that `size` extra bits stand for (ITU T.81, F.2.2.1); size from 1 to 15.
inline std::int32_t extend(std::uint32_t bits, unsigned size) {
  return std::int32_t(bits) - (bits < (1u << (size - 1)) ? (1 << size) - 1 : 0);
}

}  // namespace

bool JpegScan::build(const HuffmanTable& from, bool dc, Table& to) {
  to.fast.fill(kUnknown);
  std::memcpy(to.values.data(), from.values, to.values.size());
  std::int32_t code = 0;
  std::int32_t index = 0;
  for (int length = 1; length <= 16; ++length) {
    const std::int32_t count = from.bits[length];
    to.first_value[std::size_t(length)] = index - code;
    if (index + count > 256 || code + count > (1 << length)) {
      return false;
    }
    for (std::int32_t i = 0; i < count; ++i, ++code, ++index) {
      if (length > kFastBits) {
        continue;
      }
      const std::uint32_t symbol = to.values[std::size_t(index)];
      const std::uint32_t zeros = dc ? 0 : symbol >> 4;
      const auto size = dc ? symbol : symbol & 15;
      if (dc && size > 15) {
        return false;
      }
      const int spare = kFastBits - length;
      for (std::uint32_t rest = 0; rest < (1u << spare); ++rest) {
        std::uint32_t entry = 0;
        if (size == 0) {
          // Only sixteen zeros go on without a value; any other run of this kind ends the block.
          const std::uint32_t run = dc || zeros == 15 ? zeros : kEndOfBlock;
          entry = std::uint32_t(length) | (run << 8);
        } else if (int(size) <= spare) {
          const std::uint32_t extra = rest >> (std::uint32_t(spare) - size);
          const auto value = std::uint16_t(extend(extra, size));
          entry = (std::uint32_t(length) + size) | (zeros << 8) | (std::uint32_t(value) << 16);
        } else {
          entry = std::uint32_t(length) | kMoreBits | (zeros << 8) | (size << 16);
        }
        to.fast[(std::uint32_t(code) << spare) | rest] = entry;
      }
    }
    to.last_code[std::size_t(length)] = code << (16 - length);
    code <<= 1;
  }
  return true;
}

// Length and symbol of a code longer than the fast table's, as 16 bits each; 0 for a code that does
// not exist. `next` holds the coming 16 bits.
std::uint32_t JpegScan::long_code(const Table& table, std::uint32_t next) {
  unsigned length = kFastBits + 1;
  while (length <= 16 && std::int32_t(next) >= table.last_code[length]) {
    ++length;
  }
  if (length > 16) {
    return 0;
  }
  const std::int32_t index = std::int32_t(next >> (16 - length)) + table.first_value[length];
  if (index < 0 || index > 255) {
    return 0;
  }
  return (length << 16) | table.values[std::size_t(index)];
}

bool JpegScan::unstuff(std::span<const std::uint8_t> data) {
  if (bytes_.size() > kKeepBytes) {
    std::vector<std::uint8_t>().swap(bytes_);
  }
  bytes_.resize(std::max(bytes_.size(), data.size() + kPadding));
  segment_ends_.clear();
  std::uint8_t* out = bytes_.data();
  const std::uint8_t* in = data.data();
  const std::uint8_t* const end = in + data.size();
  for (;;) {
    const auto* mark =
        static_cast<const std::uint8_t*>(std::memchr(in, 0xFF, std::size_t(end - in)));
    if (mark == nullptr) {
      return false;  // no marker: the file is cut
    }
    std::memcpy(out, in, std::size_t(mark - in));
    out += mark - in;
    const std::uint8_t* after = mark;
    while (after < end && *after == 0xFF) {
      ++after;
    }
    if (after == end) {
      return false;
    }
    in = after + 1;
    if (*after == 0) {
      *out++ = 0xFF;
      continue;
    }
    segment_ends_.push_back(std::size_t(out - bytes_.data()));
    const bool restart = layout_.restart_interval > 0 && *after >= 0xD0 && *after <= 0xD7;
    if (!restart) {
      marker_ = mark - data.data();
      std::memset(out, 0, kPadding);
      return true;
    }
    if (*after != 0xD0 + (segment_ends_.size() - 1) % 8) {
      return false;
    }
  }
}

bool JpegScan::begin_segment(std::size_t segment) {
  if (segment >= segment_ends_.size()) {
    return false;
  }
  segment_ = segment;
  segment_end_ = bytes_.data() + segment_ends_[segment];
  bits_ = {.buffer = 0,
           .next = bytes_.data() + (segment == 0 ? 0 : segment_ends_[segment - 1]),
           .count = 0};
  last_dc_.fill(0);
  until_restart_ = layout_.restart_interval;
  return true;
}

bool JpegScan::start(const ScanLayout& layout, std::span<const std::uint8_t> data) {
  layout_ = layout;
  v3_ = machine::isa() >= machine::Isa::kV3;
  done_ = 0;
  for (int c = 0; c < layout.components; ++c) {
    const auto at = std::size_t(c);
    // Components often share tables: build each once.
    const auto shared = [&](const auto& tables) {
      int first = 0;
      while (tables[std::size_t(first)].bits != tables[at].bits) {
        ++first;
      }
      return first;
    };
    dc_table_[at] = shared(layout.dc);
    ac_table_[at] = shared(layout.ac);
    if ((dc_table_[at] == c && !build(layout.dc[at], true, dc_[at])) ||
        (ac_table_[at] == c && !build(layout.ac[at], false, ac_[at]))) {
      return false;
    }
  }
  return unstuff(data) && begin_segment(0);
}

// One body for every instruction-set level; the reader's state lives in registers throughout.
template <bool kStore>
[[gnu::always_inline]] inline bool JpegScan::decode_body(Block* const* blocks) {
  std::uint64_t buffer = bits_.buffer;  // coming bits from the top; at least `count` are valid
  const std::uint8_t* next = bits_.next;
  unsigned count = bits_.count;
  // At least 56 bits afterwards; never branches (Giesen, "Reading bits in far too many ways", 4).
  const auto refill = [&]() __attribute__((always_inline)) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, next, 8);
    if constexpr (std::endian::native == std::endian::little) {
      eight = __builtin_bswap64(eight);
    }
    buffer |= eight >> count;
    next += (63 - count) >> 3;
    count |= 56;
  };
  const auto drop = [&](unsigned bits) __attribute__((always_inline)) {
    buffer <<= bits;
    count -= bits;
  };
  const auto take = [&](unsigned size) __attribute__((always_inline)) {
    const std::int32_t value = extend(std::uint32_t(buffer >> (64 - size)), size);
    drop(size);
    return value;
  };
  const int block_count = layout_.blocks;
  for (int b = 0; b < block_count; ++b) {
    const auto component = std::size_t(layout_.component[std::size_t(b)]);
    const Table& dc = dc_[std::size_t(dc_table_[component])];
    const Table& ac = ac_[std::size_t(ac_table_[component])];
    std::int16_t* block = nullptr;
    if constexpr (kStore) {
      block = *blocks[b];
    }
    refill();
    std::uint32_t entry = dc.fast[buffer >> (64 - kFastBits)];
    std::int32_t difference = 0;
    if ((entry & kMoreBits) == 0) [[likely]] {
      drop(entry & kLengthMask);
      difference = std::int16_t(entry >> 16);
    } else {
      unsigned size = entry >> 16;
      if (entry != kUnknown) {
        drop(entry & kLengthMask);
      } else {
        const std::uint32_t code = long_code(dc, std::uint32_t(buffer >> 48));
        drop(code >> 16);
        size = code & 0xFF;
        if (code == 0 || size > 15) {
          return false;
        }
      }
      difference = size > 0 ? take(size) : 0;
    }
    // Wraps like the 16 bits that a coefficient has: an absurd file must not overflow.
    last_dc_[component] = std::int16_t(last_dc_[component] + difference);
    if constexpr (kStore) {
      block[0] = std::int16_t(last_dc_[component]);
    }
    unsigned k = 1;
    // Puts a coefficient after `zeros` zeros; true when the block is complete.
    const auto put = [&](unsigned zeros, std::int16_t value) __attribute__((always_inline)) {
      k += zeros;
      if (k > 63) {
        if constexpr (kStore) {
          block[63] = zeros == kEndOfBlock ? block[63] : value;
        }
        return true;
      }
      if constexpr (kStore) {
        block[kNatural[k]] = value;
      }
      return ++k > 63;
    };
    for (;;) {
      refill();
      // Up to three short symbols, at most 30 bits; then 26 are left, enough for any code.
      entry = ac.fast[buffer >> (64 - kFastBits)];
      if ((entry & kMoreBits) == 0) [[likely]] {
        drop(entry & kLengthMask);
        if (put((entry >> 8) & 0xFF, std::int16_t(entry >> 16))) {
          break;
        }
        entry = ac.fast[buffer >> (64 - kFastBits)];
        if ((entry & kMoreBits) == 0) [[likely]] {
          drop(entry & kLengthMask);
          if (put((entry >> 8) & 0xFF, std::int16_t(entry >> 16))) {
            break;
          }
          entry = ac.fast[buffer >> (64 - kFastBits)];
          if ((entry & kMoreBits) == 0) [[likely]] {
            drop(entry & kLengthMask);
            if (put((entry >> 8) & 0xFF, std::int16_t(entry >> 16))) {
              break;
            }
            continue;
          }
        }
      }
      unsigned zeros = (entry >> 8) & 0xFF;
      unsigned size = entry >> 16;
      if (entry != kUnknown) {
        drop(entry & kLengthMask);
      } else {
        const std::uint32_t code = long_code(ac, std::uint32_t(buffer >> 48));
        if (code == 0) {
          return false;
        }
        drop(code >> 16);
        size = code & 15;
        zeros = (code >> 4) & 15;
        zeros = size == 0 && zeros != 15 ? kEndOfBlock : zeros;
      }
      refill();
      if (put(zeros, size > 0 ? std::int16_t(take(size)) : std::int16_t(0))) {
        break;
      }
    }
  }
  bits_ = {.buffer = buffer, .next = next, .count = count};
  // What was consumed must have been there.
  return next - (count >> 3) <= segment_end_;
}

#if defined(__x86_64__)
__attribute__((target("bmi,bmi2"))) bool JpegScan::decode_stored_v3(Block* const* blocks) {
  return decode_body<true>(blocks);
}
__attribute__((target("bmi,bmi2"))) bool JpegScan::decode_skipped_v3() {
  return decode_body<false>(nullptr);
}
#endif

bool JpegScan::decode(Block* const* blocks) {
  if (layout_.restart_interval > 0 && until_restart_ == 0 && !begin_segment(segment_ + 1)) {
    return false;
  }
  --until_restart_;
  ++done_;
#if defined(__x86_64__)
  // Shifts by a variable need no flags and no fixed register there.
  if (v3_) {
    return blocks != nullptr ? decode_stored_v3(blocks) : decode_skipped_v3();
  }
#endif
  return blocks != nullptr ? decode_body<true>(blocks) : decode_body<false>(nullptr);
}

i64 JpegScan::end() const {
  // No byte may lie unused between the last MCU and the marker; an empty interval may.
  const bool all_used = segment_ends_.back() == segment_ends_[segment_] &&
                        bits_.next - (bits_.count >> 3) == segment_end_;
  return done_ == layout_.mcus && all_used ? marker_ : -1;
}

}  // namespace penstock::data::image
