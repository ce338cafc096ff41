#include "data/image/resample_kernels.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::data::image {
namespace {

constexpr int kVerticalShift = kWeightBits - kRowBits;
constexpr int kHorizontalShift = kWeightBits + kRowBits;

// ---- plain C++: the definition ------------------------------------------------------------------

void vertical_from(const VerticalArguments& a, i64 begin) {
  for (i64 j = begin; j < a.count; ++j) {
    std::int32_t sum = 1 << (kVerticalShift - 1);
    for (int k = 0; k < a.taps; ++k) {
      sum += a.weights[k] * a.source[k * a.stride + j];
    }
    a.out[j] = std::int16_t(sum >> kVerticalShift);
  }
}

void vertical_plain(const VerticalArguments& a) {
  vertical_from(a, 0);
}

void pack_nothing(AxisWeights&) {}

template <int kChannels>
void horizontal_plain(const std::int16_t* row, const AxisWeights& x, i64 count, std::uint8_t* out) {
  for (i64 i = 0; i < count; ++i) {
    const std::int16_t* weights = x.weight.data() + i * x.taps;
    const std::int16_t* in = row + i64(x.start[std::size_t(i)]) * kChannels;
    std::int32_t sums[kChannels];
    for (std::int32_t& sum : sums) {
      sum = 1 << (kHorizontalShift - 1);
    }
    for (int k = 0; k < x.taps; ++k) {
      for (int c = 0; c < kChannels; ++c) {
        sums[c] += weights[k] * in[k * kChannels + c];
      }
    }
    for (int c = 0; c < kChannels; ++c) {
      out[i * kChannels + c] = std::uint8_t(std::clamp(sums[c] >> kHorizontalShift, 0, 255));
    }
  }
}

void normalise_from(const std::uint8_t* in, i64 begin, i64 count, const float* scale,
                    const float* shift, float* out) {
  for (i64 i = begin; i < count; ++i) {
    out[i] = float(in[i]) * scale[i % 24] + shift[i % 24];
  }
}

void normalise_plain(const std::uint8_t* in, i64 count, const float* scale, const float* shift,
                     float* out) {
  normalise_from(in, 0, count, scale, shift, out);
}

constexpr KernelTable kPlain = {vertical_plain, pack_nothing, horizontal_plain<3>, normalise_plain};

#if defined(__x86_64__)
// ---- x86-64-v3
// ------------------------------------------------------------------------------------
#define PENSTOCK_V3 __attribute__((target("avx2")))

PENSTOCK_V3 inline __m128i load128(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

PENSTOCK_V3 inline __m256i load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

// Two weights as one 32-bit lane.
inline std::int32_t pair_of(const std::int16_t* weights, int k, int taps) {
  const std::uint16_t a = std::uint16_t(weights[k]);
  const std::uint16_t b = k + 1 < taps ? std::uint16_t(weights[k + 1]) : std::uint16_t(0);
  return std::int32_t(std::uint32_t(a) | (std::uint32_t(b) << 16));
}

PENSTOCK_V3 void vertical_v3(const VerticalArguments& a) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i half = _mm256_set1_epi32(1 << (kVerticalShift - 1));
  if (a.count < 32) {
    vertical_from(a, 0);
    return;
  }
  // The last step is moved back onto values already written: their results are the same.
  for (i64 next = 0; next < a.count; next += 32) {
    const i64 j = std::min(next, a.count - 32);
    __m256i sum0 = half;
    __m256i sum1 = half;
    __m256i sum2 = half;
    __m256i sum3 = half;
    for (int k = 0; k < a.taps; k += 2) {
      const __m256i weights = _mm256_set1_epi32(pair_of(a.weights, k, a.taps));
      const std::uint8_t* row = a.source + k * a.stride + j;
      const __m256i first = load256(row);
      const __m256i second = k + 1 < a.taps ? load256(row + a.stride) : zero;
      // Bytes of both rows in turn, then widened: pairs for the multiply-add.
      const __m256i low = _mm256_unpacklo_epi8(first, second);
      const __m256i high = _mm256_unpackhi_epi8(first, second);
      sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weights));
      sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weights));
      sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weights));
      sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weights));
    }
    // Within each 128-bit half: sum0 holds values 0-3, sum1 4-7, sum2 8-11, sum3 12-15.
    const __m256i a01 = _mm256_packs_epi32(_mm256_srai_epi32(sum0, kVerticalShift),
                                           _mm256_srai_epi32(sum1, kVerticalShift));
    const __m256i a23 = _mm256_packs_epi32(_mm256_srai_epi32(sum2, kVerticalShift),
                                           _mm256_srai_epi32(sum3, kVerticalShift));
    auto* out = reinterpret_cast<__m256i*>(a.out + j);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(a01, a23, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(a01, a23, 0x31));
  }
}

// Two output pixels share a register: [pixel pair][tap pair][2 pixels][4 lanes R G B and nothing].
void pack_v3(AxisWeights& x) {
  const std::size_t positions = x.start.size();
  const std::size_t pairs = (positions + 3) / 4 * 2;
  const std::size_t tap_pairs = std::size_t(x.taps) / 2;
  x.packed.assign(pairs * tap_pairs * 8, 0);
  for (std::size_t i = 0; i < positions; ++i) {
    for (std::size_t p = 0; p < tap_pairs; ++p) {
      const std::int32_t pair =
          pair_of(x.weight.data() + i * std::size_t(x.taps), int(2 * p), x.taps);
      std::int32_t* lanes = x.packed.data() + ((i / 2) * tap_pairs + p) * 8 + (i % 2) * 4;
      lanes[0] = lanes[1] = lanes[2] = pair;
    }
  }
  x.start.resize(pairs * 2, 0);  // positions past the end have weight zero
}

struct PairOfPixels {
  const std::int16_t* first;
  const std::int16_t* second;
  const std::int32_t* weights;
};

PENSTOCK_V3 inline __m256i sum_v3(const PairOfPixels& at, i64 tap_pairs) {
  // r0 g0 b0 r1 g1 b1 -> r0 r1, g0 g1, b0 b1
  const __m256i order = _mm256_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1, 0, 1,
                                         6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
  __m256i sum = _mm256_set1_epi32(1 << (kHorizontalShift - 1));
  for (i64 p = 0; p < tap_pairs; ++p) {
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(at.first + 6 * p)),
                                                 load128(at.second + 6 * p), 1);
    sum = _mm256_add_epi32(
        sum, _mm256_madd_epi16(_mm256_shuffle_epi8(both, order), load256(at.weights + 8 * p)));
  }
  return _mm256_srai_epi32(sum, kHorizontalShift);
}

// One instance per common number of taps, so that the inner loop is unrolled; 0 means any.
template <int kTapPairs>
PENSTOCK_V3 void horizontal_v3(const std::int16_t* row, const AxisWeights& x, i64 count,
                               std::uint8_t* out) {
  const i64 tap_pairs = kTapPairs > 0 ? kTapPairs : x.taps / 2;
  const std::int32_t* weights = x.packed.data();
  const std::int32_t* start = x.start.data();
  // Bytes 0-2 of each of the four pixels, which lie in the order 0 2 | 1 3.
  const __m128i order = _mm_setr_epi8(0, 1, 2, 8, 9, 10, 4, 5, 6, 12, 13, 14, -1, -1, -1, -1);
  for (i64 i = 0; i < count; i += 4) {
    const __m256i a =
        sum_v3({row + 3 * i64(start[i]), row + 3 * i64(start[i + 1]), weights}, tap_pairs);
    weights += 8 * tap_pairs;
    const __m256i b =
        sum_v3({row + 3 * i64(start[i + 2]), row + 3 * i64(start[i + 3]), weights}, tap_pairs);
    weights += 8 * tap_pairs;
    const __m256i words = _mm256_packs_epi32(a, b);           // 0 2 | 1 3, 16 bits
    const __m256i bytes = _mm256_packus_epi16(words, words);  // 0 2 0 2 | 1 3 1 3, 8 bits
    const __m128i four =
        _mm_unpacklo_epi64(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 3 * i), _mm_shuffle_epi8(four, order));
  }
}

void horizontal_any_v3(const std::int16_t* row, const AxisWeights& x, i64 count,
                       std::uint8_t* out) {
  switch (x.taps) {
    case 2: return horizontal_v3<1>(row, x, count, out);
    case 4: return horizontal_v3<2>(row, x, count, out);
    case 6: return horizontal_v3<3>(row, x, count, out);
    default: return horizontal_v3<0>(row, x, count, out);
  }
}

PENSTOCK_V3 void normalise_v3(const std::uint8_t* in, i64 count, const float* scale,
                              const float* shift, float* out) {
  __m256 s[3];
  __m256 t[3];
  for (i64 v = 0; v < 3; ++v) {
    s[v] = _mm256_loadu_ps(scale + 8 * v);
    t[v] = _mm256_loadu_ps(shift + 8 * v);
  }
  i64 i = 0;
  for (; i + 24 <= count; i += 24) {
    for (i64 v = 0; v < 3; ++v) {
      std::int64_t eight = 0;
      std::memcpy(&eight, in + i + 8 * v, 8);
      const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight)));
      // Not fused: the same bits on every level.
      _mm256_storeu_ps(out + i + 8 * v, _mm256_add_ps(_mm256_mul_ps(x, s[v]), t[v]));
    }
  }
  normalise_from(in, i, count, scale, shift, out);
}

constexpr KernelTable kV3 = {vertical_v3, pack_v3, horizontal_any_v3, normalise_v3};
#endif

}  // namespace

void horizontal_gray(const std::int16_t* row, const AxisWeights& x, i64 count, std::uint8_t* out) {
  horizontal_plain<1>(row, x, count, out);
}

const KernelTable& kernels_for(machine::Isa isa) {
#if defined(__x86_64__)
  // Wider registers gain nothing measurable here: rows are short and live in the first cache.
  if (isa >= machine::Isa::kV3) {
    return kV3;
  }
#endif
  (void)isa;
  return kPlain;
}

}  // namespace penstock::data::image
