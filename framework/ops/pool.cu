#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/trace.h"
#include "framework/kernels/rows.h"
#include "framework/ops/conv.h"
#include "framework/ops/reduce.h"

namespace penstock::ops {
namespace {

using kernels::load;
using kernels::store;

struct Window {
  i64 n, h, w, c;  // input
  i64 oh, ow;      // output
  i64 window, stride, pad;
};

// f(c, n) for the channels [c, c + n()) of a pixel, n a constant: a CPU thread takes a vector of
// them through all cells of a window at once, a GPU's threads take one each.
template <class Team, class F>
PENSTOCK_HD void each_channels(const Team& team, i64 channels, F f) {
  constexpr int kN = std::is_same_v<Team, kernels::SerialTeam> ? 16 : 1;
  team.each(channels / kN, [&](i64 k) { f(k * kN, std::integral_constant<int, kN>{}); });
  if constexpr (kN > 1) {
    const i64 done = channels / kN * kN;
    team.each(channels - done, [&](i64 k) { f(done + k, std::integral_constant<int, 1>{}); });
  }
}

// f(k) for k in [0, N). Unrolled by hand or by the compiler, it would not become vector code.
template <int N, class F>
PENSTOCK_HD void for_lanes(F f) {
#pragma GCC unroll 1
  for (int k = 0; k < N; ++k) {
    f(k);
  }
}

// The next N elements as the arithmetic sees them. A loop of its own: with more in it the compiler
// makes the loads conditional, or one by one.
template <int N, class S, class T>
PENSTOCK_HD void load_lanes(S (&to)[N], const T* from) {
  for_lanes<N>([&](int k) { to[k] = S(load(from[k])); });
}

struct Range {
  i64 begin, end;
};
PENSTOCK_HD Range clipped(i64 begin, i64 end, i64 size) {
  return {begin > 0 ? begin : 0, end < size ? end : size};
}

// One output pixel, all channels. `tap` receives which cell of the window won.
template <class T>
struct MaxForward {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  using S = compute_t<T>;
  T* y;
  std::uint8_t* tap;
  const T* x;
  Window g;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 pixel) const {
    const i64 top = pixel / g.ow % g.oh * g.stride - g.pad;
    const i64 left = pixel % g.ow * g.stride - g.pad;
    const T* image = x + pixel / (g.ow * g.oh) * g.h * g.w * g.c;
    const Range rows = clipped(top, top + g.window, g.h);
    const Range cols = clipped(left, left + g.window, g.w);
    each_channels(team, g.c, [&](i64 c, auto n) {
      constexpr int kN = decltype(n)::value;
      S best[kN];
      int at[kN];
      load_lanes(best, image + (rows.begin * g.w + cols.begin) * g.c + c);
      for_lanes<kN>([&](int k) { at[k] = int((rows.begin - top) * g.window + cols.begin - left); });
      for (i64 iy = rows.begin; iy < rows.end; ++iy) {
        for (i64 ix = cols.begin; ix < cols.end; ++ix) {
          S v[kN];
          load_lanes(v, image + (iy * g.w + ix) * g.c + c);
          const int code = int((iy - top) * g.window + ix - left);
          for_lanes<kN>([&](int k) {
            const bool better = v[k] > best[k] || v[k] != v[k];
            best[k] = better ? v[k] : best[k];
            at[k] = better ? code : at[k];
          });
        }
      }
      for_lanes<kN>([&](int k) {
        y[pixel * g.c + c + k] = store<T>(best[k]);
        tap[pixel * g.c + c + k] = std::uint8_t(at[k]);
      });
    });
  }
};

// One input pixel gathers from the windows that cover it: no two writers, overlapping windows add.
template <class T>
struct MaxBackward {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  using S = compute_t<T>;
  T* dx;
  const T* dy;
  const std::uint8_t* tap;
  Window g;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 pixel) const {
    const i64 ix = pixel % g.w + g.pad;
    const i64 iy = pixel / g.w % g.h + g.pad;
    const i64 image = pixel / (g.w * g.h) * g.oh * g.ow;
    const Range rows = {iy < g.window ? 0 : (iy - g.window) / g.stride + 1,
                        iy / g.stride + 1 < g.oh ? iy / g.stride + 1 : g.oh};
    const Range cols = {ix < g.window ? 0 : (ix - g.window) / g.stride + 1,
                        ix / g.stride + 1 < g.ow ? ix / g.stride + 1 : g.ow};
    each_channels(team, g.c, [&](i64 c, auto n) {
      constexpr int kN = decltype(n)::value;
      S sum[kN] = {};
      for (i64 oy = rows.begin; oy < rows.end; ++oy) {
        for (i64 ox = cols.begin; ox < cols.end; ++ox) {
          const i64 at = (image + oy * g.ow + ox) * g.c + c;
          const int code = int((iy - oy * g.stride) * g.window + ix - ox * g.stride);
          S v[kN];
          int winner[kN];
          load_lanes(v, dy + at);
          load_lanes(winner, tap + at);
          for_lanes<kN>([&](int k) { sum[k] += winner[k] == code ? v[k] : S(0); });
        }
      }
      for_lanes<kN>([&](int k) { dx[pixel * g.c + c + k] = store<T>(sum[k]); });
    });
  }
};

// The same for a GPU's thread per kPack channels of a pixel: whole vectors are read and written.
template <class T>
struct MaxForwardPacks {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  static constexpr int kPack = kernels::pack_length<T>();
  using S = compute_t<T>;
  MaxForward<T> f;
  i64 groups;
  PENSTOCK_HD void operator()(i64 i) const {
    using P = kernels::Pack<T, kPack>;
    const Window& g = f.g;
    const i64 pixel = i / groups;
    const i64 c = i % groups * kPack;
    const i64 top = pixel / g.ow % g.oh * g.stride - g.pad;
    const i64 left = pixel % g.ow * g.stride - g.pad;
    const T* image = f.x + pixel / (g.ow * g.oh) * g.h * g.w * g.c;
    const Range rows = clipped(top, top + g.window, g.h);
    const Range cols = clipped(left, left + g.window, g.w);
    P best{};
    kernels::Pack<std::uint8_t, kPack> at{};
    for (i64 iy = rows.begin; iy < rows.end; ++iy) {
      for (i64 ix = cols.begin; ix < cols.end; ++ix) {
        const P cell = *reinterpret_cast<const P*>(image + (iy * g.w + ix) * g.c + c);
        const int code = int((iy - top) * g.window + ix - left);
        const bool first = iy == rows.begin && ix == cols.begin;
        for (int k = 0; k < kPack; ++k) {
          const S v = S(load(cell.v[k]));
          if (first || v > S(load(best.v[k])) || v != v) {
            best.v[k] = cell.v[k];
            at.v[k] = std::uint8_t(code);
          }
        }
      }
    }
    *reinterpret_cast<P*>(f.y + pixel * g.c + c) = best;
    *reinterpret_cast<kernels::Pack<std::uint8_t, kPack>*>(f.tap + pixel * g.c + c) = at;
  }
};

template <class T>
struct MaxBackwardPacks {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  static constexpr int kPack = kernels::pack_length<T>();
  using S = compute_t<T>;
  MaxBackward<T> f;
  i64 groups;
  PENSTOCK_HD void operator()(i64 i) const {
    using P = kernels::Pack<T, kPack>;
    const Window& g = f.g;
    const i64 pixel = i / groups;
    const i64 c = i % groups * kPack;
    const i64 ix = pixel % g.w + g.pad;
    const i64 iy = pixel / g.w % g.h + g.pad;
    const i64 image = pixel / (g.w * g.h) * g.oh * g.ow;
    const Range rows = {iy < g.window ? 0 : (iy - g.window) / g.stride + 1,
                        iy / g.stride + 1 < g.oh ? iy / g.stride + 1 : g.oh};
    const Range cols = {ix < g.window ? 0 : (ix - g.window) / g.stride + 1,
                        ix / g.stride + 1 < g.ow ? ix / g.stride + 1 : g.ow};
    S sum[kPack] = {};
    for (i64 oy = rows.begin; oy < rows.end; ++oy) {
      for (i64 ox = cols.begin; ox < cols.end; ++ox) {
        const i64 at = (image + oy * g.ow + ox) * g.c + c;
        const int code = int((iy - oy * g.stride) * g.window + ix - ox * g.stride);
        const P dy = *reinterpret_cast<const P*>(f.dy + at);
        const auto tap = *reinterpret_cast<const kernels::Pack<std::uint8_t, kPack>*>(f.tap + at);
        for (int k = 0; k < kPack; ++k) {
          sum[k] += int(tap.v[k]) == code ? S(load(dy.v[k])) : S(0);
        }
      }
    }
    P out;
    for (int k = 0; k < kPack; ++k) {
      out.v[k] = store<T>(sum[k]);
    }
    *reinterpret_cast<P*>(f.dx + pixel * g.c + c) = out;
  }
};

// Does a pack kernel fit these channels and addresses?
template <class T>
bool packs_fit(Device device, i64 channels, const T* a, const T* b) {
  constexpr int kPack = kernels::pack_length<T>();
  return device.is_cuda() && channels % kPack == 0 && kernels::pack_aligned<kPack>(a) &&
         kernels::pack_aligned<kPack>(b);
}

template <class T>
struct AvgForward {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  using S = compute_t<T>;
  T* y;
  const T* x;
  Window g;
  bool count_padding;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 pixel) const {
    const i64 top = pixel / g.ow % g.oh * g.stride - g.pad;
    const i64 left = pixel % g.ow * g.stride - g.pad;
    const T* image = x + pixel / (g.ow * g.oh) * g.h * g.w * g.c;
    const Range rows = clipped(top, top + g.window, g.h);
    const Range cols = clipped(left, left + g.window, g.w);
    const i64 cells =
        count_padding ? g.window * g.window : (rows.end - rows.begin) * (cols.end - cols.begin);
    mean_of(team, image, rows, cols, cells, y + pixel * g.c);
  }
  // to[c] = the sum of channel c over the rectangle / cells.
  template <class Team>
  PENSTOCK_HD void mean_of(const Team& team, const T* image, Range rows, Range cols, i64 cells,
                           T* to) const {
    each_channels(team, g.c, [&](i64 c, auto n) {
      constexpr int kN = decltype(n)::value;
      S sum[kN] = {};
      for (i64 iy = rows.begin; iy < rows.end; ++iy) {
        for (i64 ix = cols.begin; ix < cols.end; ++ix) {
          S v[kN];
          load_lanes(v, image + (iy * g.w + ix) * g.c + c);
          for_lanes<kN>([&](int k) { sum[k] += v[k]; });
        }
      }
      for_lanes<kN>([&](int k) { to[c + k] = store<T>(sum[k] / S(cells)); });
    });
  }
};

template <class T>
struct AvgBackward {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  using S = compute_t<T>;
  T* dx;
  const T* dy;
  Window g;
  bool count_padding;
  PENSTOCK_HD i64 extent(i64 begin, i64 size) const {
    const i64 low = begin > 0 ? begin : 0;
    const i64 high = begin + g.window < size ? begin + g.window : size;
    return high - low;
  }
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 pixel) const {
    const i64 ix = pixel % g.w + g.pad;
    const i64 iy = pixel / g.w % g.h + g.pad;
    const i64 image = pixel / (g.w * g.h) * g.oh * g.ow;
    const i64 oy0 = iy < g.window ? 0 : (iy - g.window) / g.stride + 1;
    const i64 ox0 = ix < g.window ? 0 : (ix - g.window) / g.stride + 1;
    const i64 oy1 = iy / g.stride + 1 < g.oh ? iy / g.stride + 1 : g.oh;
    const i64 ox1 = ix / g.stride + 1 < g.ow ? ix / g.stride + 1 : g.ow;
    each_channels(team, g.c, [&](i64 c, auto n) {
      constexpr int kN = decltype(n)::value;
      S sum[kN] = {};
      for (i64 oy = oy0; oy < oy1; ++oy) {
        for (i64 ox = ox0; ox < ox1; ++ox) {
          const i64 cells = count_padding ? g.window * g.window
                                          : extent(oy * g.stride - g.pad, g.h) *
                                                extent(ox * g.stride - g.pad, g.w);
          S v[kN];
          load_lanes(v, dy + (image + oy * g.ow + ox) * g.c + c);
          for_lanes<kN>([&](int k) { sum[k] += v[k] / S(cells); });
        }
      }
      for_lanes<kN>([&](int k) { dx[pixel * g.c + c + k] = store<T>(sum[k]); });
    });
  }
};

// Window i of `out` over n cells: [floor(i n / out), ceil((i + 1) n / out)).
PENSTOCK_HD i64 window_begin(i64 i, i64 n, i64 out) {
  return i * n / out;
}
PENSTOCK_HD i64 window_end(i64 i, i64 n, i64 out) {
  return ((i + 1) * n + out - 1) / out;
}

template <class T>
struct AdaptiveForward {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  using S = compute_t<T>;
  T* y;
  const T* x;
  Window g;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 pixel) const {
    const i64 oy = pixel / g.ow % g.oh;
    const i64 ox = pixel % g.ow;
    const Range rows = {window_begin(oy, g.h, g.oh), window_end(oy, g.h, g.oh)};
    const Range cols = {window_begin(ox, g.w, g.ow), window_end(ox, g.w, g.ow)};
    const T* image = x + pixel / (g.ow * g.oh) * g.h * g.w * g.c;
    const i64 cells = (rows.end - rows.begin) * (cols.end - cols.begin);
    AvgForward<T>{y, x, g, false}.mean_of(team, image, rows, cols, cells, y + pixel * g.c);
  }
};

template <class T>
struct AdaptiveBackward {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  using S = compute_t<T>;
  T* dx;
  const T* dy;
  Window g;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 pixel) const {
    const i64 iy = pixel / g.w % g.h;
    const i64 ix = pixel % g.w;
    const i64 image = pixel / (g.w * g.h) * g.oh * g.ow;
    each_channels(team, g.c, [&](i64 c, auto n) {
      constexpr int kN = decltype(n)::value;
      S sum[kN] = {};
      for (i64 oy = iy * g.oh / g.h; oy < g.oh && window_begin(oy, g.h, g.oh) <= iy; ++oy) {
        const i64 rows = window_end(oy, g.h, g.oh) - window_begin(oy, g.h, g.oh);
        if (window_end(oy, g.h, g.oh) <= iy) {
          continue;
        }
        for (i64 ox = ix * g.ow / g.w; ox < g.ow && window_begin(ox, g.w, g.ow) <= ix; ++ox) {
          if (window_end(ox, g.w, g.ow) <= ix) {
            continue;
          }
          const i64 cols = window_end(ox, g.w, g.ow) - window_begin(ox, g.w, g.ow);
          S v[kN];
          load_lanes(v, dy + (image + oy * g.ow + ox) * g.c + c);
          for_lanes<kN>([&](int k) { sum[k] += v[k] / S(rows * cols); });
        }
      }
      for_lanes<kN>([&](int k) { dx[pixel * g.c + c + k] = store<T>(sum[k]); });
    });
  }
};

Window window_of(const char* name, const Tensor& x, const Pool2d& o) {
  check(x.rank() == 4, "{}: {}; expected [N, H, W, C]", name, x);
  check(o.window >= 1 && o.window <= 15 && o.stride >= 1 && o.pad >= 0 && o.pad <= o.window / 2,
        "{}: window {}, stride {}, pad {}; expected a window of 1 to 15 and a pad of at most half",
        name, o.window, o.stride, o.pad);
  Window g{x.dim(0), x.dim(1), x.dim(2), x.dim(3), 0, 0, o.window, o.stride, o.pad};
  g.oh = (g.h + 2 * o.pad - o.window) / o.stride + 1;
  g.ow = (g.w + 2 * o.pad - o.window) / o.stride + 1;
  check(g.h + 2 * o.pad >= o.window && g.w + 2 * o.pad >= o.window,
        "{}: window {} does not fit into {}", name, o.window, x);
  return g;
}

// Runs body<T> over the pixels of `over`.
template <class Make>
void launch(const char* name, DType dtype, Device device, i64 pixels, i64 cost, const Make& make) {
  visit_float(dtype, name, [&]<class T>() {
    kernels::for_each_row(device, pixels, cost, make.template operator()<T>());
  });
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pool2d& o) {
  const trace::Op op("max_pool2d");
  const Window g = window_of("max_pool2d", x, o);
  const Tensor y = Tensor::empty({g.n, g.oh, g.ow, g.c}, x.dtype(), x.device());
  const Tensor tap = Tensor::empty(y.shape(), DType::u8, x.device());
  const i64 cost = g.c * g.window;
  ledger::kernel({&x}, {&y, &tap}, double(y.numel() * g.window * g.window));
  visit_float(x.dtype(), "max_pool2d", [&]<class T>() {
    const MaxForward<T> f{y.data<T>(), tap.data<std::uint8_t>(), x.data<T>(), g};
    if (packs_fit(x.device(), g.c, f.x, f.y)) {
      const i64 groups = g.c / MaxForwardPacks<T>::kPack;
      kernels::for_each(x.device(), g.n * g.oh * g.ow * groups, MaxForwardPacks<T>{f, groups});
    } else {
      kernels::for_each_row(x.device(), g.n * g.oh * g.ow, cost, f);
    }
  });
  return record("max_pool2d", y, {x}, [g, tap, cost](Backward& b) {
    const Tensor& dy = b.dy();
    const Tensor dx = Tensor::empty({g.n, g.h, g.w, g.c}, dy.dtype(), dy.device());
    ledger::kernel({&dy, &tap}, {&dx}, double(dy.numel()));
    visit_float(dy.dtype(), "max_pool2d", [&]<class T>() {
      const MaxBackward<T> f{dx.data<T>(), dy.data<T>(), tap.data<std::uint8_t>(), g};
      if (packs_fit(dy.device(), g.c, f.dy, f.dx)) {
        const i64 groups = g.c / MaxBackwardPacks<T>::kPack;
        kernels::for_each(dy.device(), g.n * g.h * g.w * groups, MaxBackwardPacks<T>{f, groups});
      } else {
        kernels::for_each_row(dy.device(), g.n * g.h * g.w, cost, f);
      }
    });
    b.set(0, dx);
  });
}

Tensor avg_pool2d(const Tensor& x, const Pool2d& o) {
  const trace::Op op("avg_pool2d");
  const Window g = window_of("avg_pool2d", x, o);
  const Tensor y = Tensor::empty({g.n, g.oh, g.ow, g.c}, x.dtype(), x.device());
  const bool count = o.count_padding;
  const i64 cost = g.c * g.window;
  ledger::kernel({&x}, {&y}, double(y.numel() * g.window * g.window));
  launch("avg_pool2d", x.dtype(), x.device(), g.n * g.oh * g.ow, cost, [&]<class T>() {
    return AvgForward<T>{y.data<T>(), x.data<T>(), g, count};
  });
  return record("avg_pool2d", y, {x}, [g, count, cost](Backward& b) {
    const Tensor& dy = b.dy();
    const Tensor dx = Tensor::empty({g.n, g.h, g.w, g.c}, dy.dtype(), dy.device());
    ledger::kernel({&dy}, {&dx}, double(dx.numel()));
    launch("avg_pool2d", dy.dtype(), dy.device(), g.n * g.h * g.w, cost, [&]<class T>() {
      return AvgBackward<T>{dx.data<T>(), dy.data<T>(), g, count};
    });
    b.set(0, dx);
  });
}

Tensor adaptive_avg_pool2d(const Tensor& x, i64 out) {
  const trace::Op op("adaptive_avg_pool2d");
  check(x.rank() == 4 && out >= 1 && x.dim(1) >= 1 && x.dim(2) >= 1,
        "adaptive_avg_pool2d: {} to {}; expected [N, H, W, C] with pixels", x, out);
  const Window g{x.dim(0), x.dim(1), x.dim(2), x.dim(3), out, out, 0, 0, 0};
  const Tensor y = Tensor::empty({g.n, out, out, g.c}, x.dtype(), x.device());
  const i64 cost = g.c * (g.h / out + 1);
  ledger::kernel({&x}, {&y}, double(x.numel()));
  launch("adaptive_avg_pool2d", x.dtype(), x.device(), g.n * out * out, cost, [&]<class T>() {
    return AdaptiveForward<T>{y.data<T>(), x.data<T>(), g};
  });
  return record("adaptive_avg_pool2d", y, {x}, [g, cost](Backward& b) {
    const Tensor& dy = b.dy();
    const Tensor dx = Tensor::empty({g.n, g.h, g.w, g.c}, dy.dtype(), dy.device());
    ledger::kernel({&dy}, {&dx}, double(dx.numel()));
    launch("adaptive_avg_pool2d", dy.dtype(), dy.device(), g.n * g.h * g.w, cost, [&]<class T>() {
      return AdaptiveBackward<T>{dx.data<T>(), dy.data<T>(), g};
    });
    b.set(0, dx);
  });
}

Tensor global_avg_pool(const Tensor& x) {
  const trace::Op op("global_avg_pool");
  check(x.rank() >= 3, "global_avg_pool: {}; expected [N, ..., C]", x);
  std::vector<int> axes;
  for (int i = 1; i + 1 < x.rank(); ++i) {
    axes.push_back(i);
  }
  return mean(x, axes);
}

}  // namespace penstock::ops
