#include "framework/kernels/naive.h"
#include "framework/kernels/rows.h"

// Direct convolution. On the CPU each item works on a tile of consecutive channels that stays in
// registers and first-level cache, and walks memory in order; on a GPU each thread has one channel.
// Sums run in one fixed order.
namespace penstock::kernels::naive {
namespace {

constexpr int kTile = 64;

// Geometry as kernels need it: no library types, plain arrays.
struct Geometry {
  i64 n, channels, filters, groups;
  i64 in[3], out[3], kernel[3], stride[3], pad[3], dilation[3];

  explicit Geometry(const Conv& c)
      : n(c.n), channels(c.channels), filters(c.filters), groups(c.groups) {
    for (int i = 0; i < 3; ++i) {
      const auto k = std::size_t(i);
      in[i] = c.in[k];
      out[i] = c.out(i);
      kernel[i] = c.kernel[k];
      stride[i] = c.stride[k];
      pad[i] = c.pad[k];
      dilation[i] = c.dilation[k];
    }
  }
  PENSTOCK_HD i64 taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  PENSTOCK_HD i64 group_channels() const { return channels / groups; }
  PENSTOCK_HD i64 group_filters() const { return filters / groups; }
  // Where output `o` reads along axis i under kernel position k; outside of the image for padding.
  PENSTOCK_HD i64 input_at(int i, i64 o, i64 k) const {
    return o * stride[i] - pad[i] + k * dilation[i];
  }
  // Which output reads input `x` along axis i under kernel position k; -1 for none.
  PENSTOCK_HD i64 output_at(int i, i64 x, i64 k) const {
    const i64 at = x + pad[i] - k * dilation[i];
    return at >= 0 && at % stride[i] == 0 && at / stride[i] < out[i] ? at / stride[i] : -1;
  }
  PENSTOCK_HD bool inside(i64 d, i64 h, i64 w) const {
    return d >= 0 && d < in[0] && h >= 0 && h < in[1] && w >= 0 && w < in[2];
  }
};

// A point of a volume, from its number.
struct Point {
  i64 image, d, h, w;
  PENSTOCK_HD Point(i64 item, const i64* size) {
    w = item % size[2];
    item /= size[2];
    h = item % size[1];
    item /= size[1];
    d = item % size[0];
    image = item / size[0];
  }
};

// Sum of a[i] b[i] in lanes, as SerialTeam adds: it vectorises.
template <class S, class T>
PENSTOCK_HD S dot(i64 n, const T* a, const T* b) {
  constexpr int kLanes = 16;
  if (n < kLanes) {
    S sum = 0;
    for (i64 i = 0; i < n; ++i) {
      sum += S(load(a[i])) * S(load(b[i]));
    }
    return sum;
  }
  return SerialTeam{}.sum(n, [=](i64 i) { return S(load(a[i])) * S(load(b[i])); });
}

// One output pixel: every filter's sum over the taps inside the image.
template <class T, class S>
struct Forward {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  Geometry g;
  const T* x;
  const T* w;
  const T* bias;
  T* y;
  bool relu;

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 item) const {
    const Point o(item, g.out);
    const i64 width = g.group_channels();
    const i64 taps = g.taps();
    T* out = y + item * g.filters;
    team.each(g.filters, [&](i64 k) {
      const i64 first = k / g.group_filters() * width;
      const T* weights = w + k * taps * width;
      S sum = 0;
      for (i64 q = 0; q < g.kernel[0]; ++q) {
        const i64 d = g.input_at(0, o.d, q);
        for (i64 r = 0; r < g.kernel[1]; ++r) {
          const i64 h = g.input_at(1, o.h, r);
          for (i64 s = 0; s < g.kernel[2]; ++s) {
            const i64 v = g.input_at(2, o.w, s);
            if (g.inside(d, h, v)) {
              const i64 pixel = ((o.image * g.in[0] + d) * g.in[1] + h) * g.in[2] + v;
              const i64 tap = (q * g.kernel[1] + r) * g.kernel[2] + s;
              sum += dot<S>(width, x + pixel * g.channels + first, weights + tap * width);
            }
          }
        }
      }
      sum += bias != nullptr ? S(load(bias[k])) : S(0);
      out[k] = store<T>(relu && !(sum > S(0)) ? S(0) : sum);
    });
  }
};

// One input pixel: every channel's sum over the outputs that read it.
template <class T, class S>
struct BackwardData {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  Geometry g;
  const T* dy;
  const T* w;
  T* dx;

  // Adds the taps of channels [first, first + count) of one group into sums.
  PENSTOCK_HD void add(const Point& i, i64 group, i64 first, i64 count, S* sums) const {
    const i64 width = g.group_channels();
    const i64 filters = g.group_filters();
    const i64 taps = g.taps();
    for (i64 q = 0; q < g.kernel[0]; ++q) {
      const i64 d = g.output_at(0, i.d, q);
      for (i64 r = 0; r < g.kernel[1]; ++r) {
        const i64 h = g.output_at(1, i.h, r);
        for (i64 s = 0; s < g.kernel[2]; ++s) {
          const i64 v = g.output_at(2, i.w, s);
          if (d < 0 || h < 0 || v < 0) {
            continue;
          }
          const i64 pixel = ((i.image * g.out[0] + d) * g.out[1] + h) * g.out[2] + v;
          const T* gradient = dy + pixel * g.filters + group * filters;
          const i64 tap = (q * g.kernel[1] + r) * g.kernel[2] + s;
          const T* weights = w + (group * filters * taps + tap) * width + first;
          for (i64 k = 0; k < filters; ++k) {
            const S by = S(load(gradient[k]));
            const T* row = weights + k * taps * width;
            for (i64 c = 0; c < count; ++c) {
              sums[c] += by * S(load(row[c]));
            }
          }
        }
      }
    }
  }

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 item) const {
    const Point i(item, g.in);
    const i64 width = g.group_channels();
    T* out = dx + item * g.channels;
    constexpr i64 kWide = std::is_same_v<Team, SerialTeam> ? kTile : 1;
    const i64 tiles = (width + kWide - 1) / kWide;
    team.each(g.groups * tiles, [&](i64 t) {
      const i64 group = t / tiles;
      const i64 first = t % tiles * kWide;
      const i64 count = width - first < kWide ? width - first : kWide;
      S sums[kWide] = {};
      add(i, group, first, count, sums);
      for (i64 c = 0; c < count; ++c) {
        out[group * width + first + c] = store<T>(sums[c]);
      }
    });
  }
};

// One tap of a few filters: their sums over all images and output pixels.
template <class T, class Out, class S>
struct BackwardWeights {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  static constexpr int kFilters = 8;
  Geometry g;
  const T* x;
  const T* dy;
  Out* dw;
  S beta;

  PENSTOCK_HD i64 blocks() const { return (g.group_filters() + kFilters - 1) / kFilters; }

  // Filters [k, k + rows), channels [first, first + count) of a group, into sums [rows][Wide].
  template <int Rows, int Wide>
  PENSTOCK_HD void add(i64 tap, i64 group, i64 k, i64 rows, i64 first, i64 count, S* sums) const {
    const i64 s = tap % g.kernel[2];
    const i64 r = tap / g.kernel[2] % g.kernel[1];
    const i64 q = tap / g.kernel[2] / g.kernel[1];
    const T* gradients = dy + group * g.group_filters() + k;
    const T* values = x + group * g.group_channels() + first;
    for (i64 n = 0; n < g.n; ++n) {
      S image[Rows * Wide] = {};  // per image first: long sums lose less
      for (i64 d = 0; d < g.out[0]; ++d) {
        for (i64 h = 0; h < g.out[1]; ++h) {
          for (i64 v = 0; v < g.out[2]; ++v) {
            const i64 at_d = g.input_at(0, d, q);
            const i64 at_h = g.input_at(1, h, r);
            const i64 at_w = g.input_at(2, v, s);
            if (!g.inside(at_d, at_h, at_w)) {
              continue;
            }
            const T* from =
                values + (((n * g.in[0] + at_d) * g.in[1] + at_h) * g.in[2] + at_w) * g.channels;
            const T* by =
                gradients + (((n * g.out[0] + d) * g.out[1] + h) * g.out[2] + v) * g.filters;
            for (i64 j = 0; j < rows; ++j) {
              const S factor = S(load(by[j]));
              S* row = image + j * Wide;
              for (i64 c = 0; c < count; ++c) {
                row[c] += factor * S(load(from[c]));
              }
            }
          }
        }
      }
      for (i64 j = 0; j < Rows * Wide; ++j) {
        sums[j] += image[j];
      }
    }
  }

  PENSTOCK_HD void keep(i64 tap, i64 group, i64 k, i64 c, S sum) const {
    const i64 filter = group * g.group_filters() + k;
    Out& to = dw[(filter * g.taps() + tap) * g.group_channels() + c];
    to = store<Out>(beta != S(0) ? beta * S(load(to)) + sum : sum);
  }

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 item) const {
    const i64 width = g.group_channels();
    const i64 tap = item % g.taps();
    const i64 group = item / g.taps() / blocks();
    const i64 k = item / g.taps() % blocks() * kFilters;
    const i64 rest = g.group_filters() - k;
    const i64 rows = rest < kFilters ? rest : kFilters;
    if constexpr (std::is_same_v<Team, SerialTeam>) {
      for (i64 first = 0; first < width; first += kTile) {
        const i64 count = width - first < kTile ? width - first : kTile;
        S sums[kFilters * kTile] = {};
        add<kFilters, kTile>(tap, group, k, rows, first, count, sums);
        for (i64 j = 0; j < rows; ++j) {
          for (i64 c = 0; c < count; ++c) {
            keep(tap, group, k + j, first + c, sums[j * kTile + c]);
          }
        }
      }
    } else {
      team.each(rows * width, [&](i64 at) {
        S sum[1] = {};
        add<1, 1>(tap, group, k + at / width, 1, at % width, 1, sum);
        keep(tap, group, k + at / width, at % width, sum[0]);
      });
    }
  }
};

}  // namespace

void conv_forward(const Conv& c, const ConvForward& t) {
  visit_float(t.x.dtype(), "convolution", [&]<class T>() {
    const Forward<T, compute_t<T>> f{.g = Geometry(c),
                                     .x = t.x.data<T>(),
                                     .w = t.w.data<T>(),
                                     .bias = t.bias.defined() ? t.bias.data<T>() : nullptr,
                                     .y = t.y.data<T>(),
                                     .relu = t.relu};
    const i64 work = c.filters * c.taps() * (c.channels / c.groups);
    for_each_row(t.y.device(), c.n * c.out_pixels(), work, f);
  });
}

void conv_backward_data(const Conv& c, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  visit_float(dy.dtype(), "convolution", [&]<class T>() {
    const BackwardData<T, compute_t<T>> f{.g = Geometry(c),
                                          .dy = dy.data<T>(),
                                          .w = w.data<T>(),
                                          .dx = dx.data<T>()};
    const i64 work = c.channels * c.taps() * (c.filters / c.groups);
    for_each_row(dx.device(), c.n * c.in_pixels(), work, f);
  });
}

void conv_backward_weights(const Conv& c, const Tensor& x, const Tensor& dy, const Tensor& dw,
                           double beta) {
  visit_float(x.dtype(), "convolution", [&]<class T>() {
    using S = compute_t<T>;
    const auto run = [&]<class Out>() {
      const BackwardWeights<T, Out, S> f{.g = Geometry(c),
                                         .x = x.data<T>(),
                                         .dy = dy.data<T>(),
                                         .dw = dw.data<Out>(),
                                         .beta = S(beta)};
      const i64 items = c.groups * f.blocks() * c.taps();
      for_each_row(dw.device(), items, c.n * c.out_pixels() * (c.channels / c.groups), f);
    };
    if (dw.dtype() == dtype_of<T>) {
      run.template operator()<T>();
    } else if constexpr (!std::is_same_v<T, double>) {
      run.template operator()<float>();
    }
  });
}

}  // namespace penstock::kernels::naive
