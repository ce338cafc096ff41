#include "data/image/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/image/resample_kernels.h"
#include "framework/core/check.h"
#include "framework/core/machine.h"

namespace penstock::data::image {
namespace {

// With more taps a weight of 14 bits is too coarse; such a reduction goes through floats.
constexpr int kMaxTaps = 96;

// An axis in the pixels of the (reduced) picture, counted from its origin whatever region of it was
// decoded, so that the region cannot change the rounding: position i is centred at
// begin + (first + i + 0.5) * step.
struct Placed {
  double begin = 0;
  double step = 1;
  double reach = 1;  // half the filter's width
  i64 low = 0;
  i64 high = 0;
  i64 origin = 0;  // the decoded region's first pixel
};

Placed place(const Axis& axis, i64 offset, int scale, i64 size, bool antialias) {
  Placed p;
  p.origin = offset >= 0 ? offset / scale : -((scale - 1 - offset) / scale);
  // Not zero only where a reduced picture is mirrored by its orientation.
  const double shift = double(offset - p.origin * scale);
  p.step = (axis.end - axis.begin) / double(axis.full) / scale;
  p.begin = (axis.begin - shift) / scale;
  p.reach = antialias ? std::max(1.0, p.step) : 1.0;
  // Rounding outwards keeps partly covered pixels of a reduced picture.
  p.low = std::max(p.origin, i64(std::floor((double(axis.low) - shift) / scale)));
  p.high = std::min(p.origin + size, i64(std::ceil((double(axis.high) - shift) / scale)));
  return p;
}

Span taps_at(const Placed& p, i64 position) {
  const double centre = p.begin + (double(position) + 0.5) * p.step;
  i64 first = std::max(p.low, i64(std::floor(centre - p.reach + 0.5)));
  i64 second = std::min(p.high, i64(std::floor(centre + p.reach + 0.5)));
  // Rounding of coordinates may leave nothing at an edge: then the nearest pixel counts.
  first = std::clamp(first, p.low, p.high - 1);
  second = std::clamp(second, first + 1, p.high);
  return {first, second};
}

double triangle(double x) {
  return std::max(0.0, 1.0 - std::abs(x));
}

// Weights of one position in real numbers, normalised; returns their number.
int real_weights(const Placed& p, i64 position, Span taps, std::vector<double>& weights) {
  const double centre = p.begin + (double(position) + 0.5) * p.step;
  const auto count = std::size_t(taps.second - taps.first);
  weights.resize(count);
  double sum = 0;
  for (std::size_t k = 0; k < count; ++k) {
    weights[k] = triangle((double(taps.first) + double(k) + 0.5 - centre) / p.reach);
    sum += weights[k];
  }
  for (double& w : weights) {
    w = sum > 0 ? w / sum : 1.0 / double(count);
  }
  return int(count);
}

int most_taps(const Placed& p) {
  return int(std::min(2 * std::ceil(p.reach) + 1, 1e6));
}

// Fixed-point tables; positions in output order, mirrored ones included.
void tabulate(const Axis& axis, const Placed& p, AxisWeights& table) {
  const auto count = std::size_t(axis.count);
  table.taps = 2;
  table.start.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const i64 position = axis.first + (axis.mirrored ? axis.count - 1 - i64(i) : i64(i));
    const Span taps = taps_at(p, position);
    table.start[i] = std::int32_t(taps.first - p.origin);
    table.taps = std::max(table.taps, int(taps.second - taps.first));
  }
  table.taps += table.taps % 2;
  table.weight.assign(count * std::size_t(table.taps), 0);
  for (std::size_t i = 0; i < count; ++i) {
    const i64 position = axis.first + (axis.mirrored ? axis.count - 1 - i64(i) : i64(i));
    const Span taps = taps_at(p, position);
    const double centre = p.begin + (double(position) + 0.5) * p.step;
    const auto used = std::size_t(taps.second - taps.first);
    double real[kMaxTaps + 2];
    double sum = 0;
    for (std::size_t k = 0; k < used; ++k) {
      real[k] = triangle((double(taps.first) + double(k) + 0.5 - centre) / p.reach);
      sum += real[k];
    }
    std::int16_t* weights = table.weight.data() + i * std::size_t(table.taps);
    int total = 0;
    std::size_t largest = 0;
    for (std::size_t k = 0; k < used; ++k) {
      const double share = sum > 0 ? real[k] / sum : 1.0 / double(used);
      weights[k] = std::int16_t(std::lround(share * kWeightOne));
      total += weights[k];
      largest = weights[k] > weights[largest] ? k : largest;
    }
    weights[largest] = std::int16_t(weights[largest] + (kWeightOne - total));
  }
}

// Any reduction factor, in floats: for factors that fixed-point weights cannot express.
void resample_wide(const ResampleRequest& r, const Placed& px, const Placed& py,
                   std::vector<float>& sums) {
  const auto channels = std::size_t(r.source.channels);
  const auto row_values = std::size_t(r.source.width) * channels;
  sums.resize(row_values);
  std::vector<double> weights;
  for (i64 v = 0; v < r.y.count; ++v) {
    const i64 row = r.y.first + (r.y.mirrored ? r.y.count - 1 - v : v);
    const Span rows = taps_at(py, row);
    std::fill(sums.begin(), sums.end(), 0.0F);
    const int row_taps = real_weights(py, row, rows, weights);
    for (int k = 0; k < row_taps; ++k) {
      const std::uint8_t* in = r.source.data + (rows.first - py.origin + k) * r.source.stride;
      const auto w = float(weights[std::size_t(k)]);
      for (std::size_t j = 0; j < row_values; ++j) {
        sums[j] += w * float(in[j]);
      }
    }
    std::uint8_t* out = r.out + v * r.x.count * r.source.channels;
    for (i64 u = 0; u < r.x.count; ++u) {
      const i64 column = r.x.first + (r.x.mirrored ? r.x.count - 1 - u : u);
      const Span columns = taps_at(px, column);
      const int taps = real_weights(px, column, columns, weights);
      for (std::size_t c = 0; c < channels; ++c) {
        double sum = 0.5;
        for (int k = 0; k < taps; ++k) {
          sum += weights[std::size_t(k)] *
                 double(sums[std::size_t(columns.first - px.origin + k) * channels + c]);
        }
        out[std::size_t(u) * channels + c] = std::uint8_t(std::clamp(sum, 0.0, 255.0));
      }
    }
  }
}

}  // namespace

Span taps_of(const Axis& axis, bool antialias) {
  const Placed p = place(axis, 0, 1, axis.high, antialias);
  const Span a = taps_at(p, axis.first);
  const Span b = taps_at(p, axis.first + axis.count - 1);
  return {a.first, b.second};
}

void Resampler::run(const ResampleRequest& r) {
  const Pixels& source = r.source;
  check(r.x.count > 0 && r.y.count > 0 && r.x.full >= r.x.first + r.x.count &&
            r.y.full >= r.y.first + r.y.count && r.x.end > r.x.begin && r.y.end > r.y.begin,
        "resample: empty or inconsistent box or output");
  const Placed px = place(r.x, source.x, source.scale, source.width, r.antialias);
  const Placed py = place(r.y, source.y, source.scale, source.height, r.antialias);
  check(px.low < px.high && py.low < py.high, "resample: the box lies outside the decoded pixels");
  if (most_taps(px) > kMaxTaps || most_taps(py) > kMaxTaps) {
    resample_wide(r, px, py, wide_);
    return;
  }
  tabulate(r.x, px, x_);
  tabulate(r.y, py, y_);

  const auto channels = std::size_t(source.channels);
  const auto columns = std::minmax_element(x_.start.begin(), x_.start.end());
  const i64 first = *columns.first;
  const i64 used = std::min<i64>(source.width, *columns.second + x_.taps) - first;
  for (std::int32_t& start : x_.start) {
    start -= std::int32_t(first);
  }
  const KernelTable& kernels = kernels_for(machine::isa());
  if (source.channels == 3) {
    kernels.pack_horizontal(x_);
  }
  // Vector code reads past the last tap of a row, at weight zero, and past the last pixel of a
  // line.
  constexpr std::size_t kSlack = 64;
  row_.assign(std::size_t(used + x_.taps) * channels + kSlack, 0);
  line_.resize(std::size_t(r.x.count) * channels + kSlack);
  const i64 out_stride = r.x.count * source.channels;
  for (i64 v = 0; v < r.y.count; ++v) {
    const std::int32_t row = y_.start[std::size_t(v)];
    const int taps = int(std::min<i64>(y_.taps, source.height - row));
    kernels.vertical({.source = source.data + row * source.stride + first * source.channels,
                      .stride = source.stride,
                      .weights = y_.weight.data() + v * i64(y_.taps),
                      .taps = taps,
                      .count = used * source.channels,
                      .out = row_.data()});
    if (source.channels == 3) {
      kernels.horizontal(row_.data(), x_, r.x.count, line_.data());
    } else {
      horizontal_gray(row_.data(), x_, r.x.count, line_.data());
    }
    std::memcpy(r.out + v * out_stride, line_.data(), std::size_t(out_stride));
  }
}

void normalise(const std::uint8_t* in, i64 pixels, int channels, const Normalise& by, float* out) {
  // Three channels repeat every 3 values and eight lanes every 8: 24 values hold both.
  float scale[24];
  float shift[24];
  for (int i = 0; i < 24; ++i) {
    scale[i] = by.scale[channels == 3 ? i % 3 : 0];
    shift[i] = by.shift[channels == 3 ? i % 3 : 0];
  }
  kernels_for(machine::isa()).normalise(in, pixels * channels, scale, shift, out);
}

}  // namespace penstock::data::image
