#include "framework/kernels/basic.h"

#include "framework/core/ledger.h"
#include "framework/kernels/rows.h"

namespace penstock::kernels {

#ifdef __CUDACC__
namespace gpu {
void check_launch() {
  const cudaError_t code = cudaGetLastError();
  if (code != cudaSuccess) {
    throw DeviceError(format("cuda: launching '{}' failed: {} ({})", trace::current_op(),
                             cudaGetErrorName(code), cudaGetErrorString(code)));
  }
}
}  // namespace gpu
#endif

namespace {

template <class T>
struct Fill {
  T* y;
  T value;
  PENSTOCK_HD void operator()(i64 i) const { y[i] = value; }
};

struct Identity {
  template <class T>
  PENSTOCK_HD T operator()(T x) const {
    return x;
  }
};

struct Sum {
  template <class A, class B>
  PENSTOCK_HD auto operator()(A a, B b) const {
    return a + b;
  }
};

struct Times {
  const float* scale;
  template <class T>
  PENSTOCK_HD T operator()(T x) const {
    return x * T(*scale);
  }
};

// The type that a sum of T is carried in.
template <class T>
struct SumType {
  using type = std::int64_t;
};
template <>
struct SumType<double> {
  using type = double;
};
template <>
struct SumType<float> {
  using type = float;
};
template <>
struct SumType<f16> {
  using type = float;
};
template <>
struct SumType<bf16> {
  using type = float;
};

template <class T, class S>
struct Column {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const T* x;
  i64 cols;
  PENSTOCK_HD S operator()(i64 r, i64 c) const { return S(load(x[r * cols + c])); }

  static constexpr int kPack = pack_length<T>();
  PENSTOCK_HD bool packs(i64 width) const { return width % kPack == 0 && pack_aligned<kPack>(x); }
  PENSTOCK_HD void add(i64 r, i64 c, S* sums) const {
    const Pack<T, kPack> p = *reinterpret_cast<const Pack<T, kPack>*>(x + r * cols + c);
    for (int k = 0; k < kPack; ++k) {
      sums[k] += S(load(p.v[k]));
    }
  }
};

// One sum over a middle axis: element i of [outer, inner].
template <class Out, class T, class S>
struct MiddleSum {
  static constexpr bool kCpuOnly = std::is_same_v<T, double> || std::is_same_v<Out, double>;
  Out* y;
  const T* x;
  i64 n, inner;
  double scale, beta;
  PENSTOCK_HD void operator()(i64 i) const {
    const T* from = x + i / inner * n * inner + i % inner;
    S sum = 0;
    for (i64 k = 0; k < n; ++k) {
      sum += S(load(from[k * inner]));
    }
    if constexpr (std::is_floating_point_v<S>) {
      sum *= S(scale);
      if (beta != 0) {
        sum += S(beta) * S(load(y[i]));
      }
    }
    y[i] = store<Out>(sum);
  }
};

// Adds up the chunks of column_sums and stores scale * sum (+ beta * what was there).
template <class Out, class S>
struct Finish {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  Out* y;
  const S* partial;
  i64 cols;
  i64 chunks;
  double scale;
  double beta;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 c) const {
    S sum = team.sum(chunks, [&](i64 k) { return partial[k * cols + c]; });
    if (!team.leader()) {
      return;
    }
    if constexpr (std::is_floating_point_v<S>) {
      sum *= S(scale);
      if (beta != 0) {
        sum += S(beta) * S(load(y[c]));
      }
    }
    y[c] = store<Out>(sum);
  }
};

template <class Out, class T, class S>
struct RowSum {
  static constexpr bool kCpuOnly = std::is_same_v<T, double> || std::is_same_v<Out, double>;
  Out* y;
  const T* x;
  i64 n;
  double scale;
  double beta;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const T* values = x + row * n;
    S sum = team.sum(n, [&](i64 i) { return S(load(values[i])); });
    if (team.leader()) {
      if constexpr (std::is_floating_point_v<S>) {
        sum *= S(scale);
        if (beta != 0) {
          sum += S(beta) * S(load(y[row]));
        }
      }
      y[row] = store<Out>(sum);
    }
  }
};

template <class T, class Out>
void sum_typed(const Tensor& y, const Tensor& x, i64 outer, i64 n, i64 inner, double scale,
               double beta) {
  using S = typename SumType<T>::type;
  const Device device = x.device();
  if (inner == 1) {
    for_each_row(device, outer, n, RowSum<Out, T, S>{y.data<Out>(), x.data<T>(), n, scale, beta});
    return;
  }
  if (outer > 1 && (n <= 1024 || outer * inner >= (i64(1) << 16))) {
    // Many short sums: each by itself, neighbours side by side.
    for_each(device, outer * inner,
             MiddleSum<Out, T, S>{y.data<Out>(), x.data<T>(), n, inner, scale, beta},
             kGrain / (n + 1) + 1);
    return;
  }
  // [outer, n, inner] one outer slice after the other: outer is 1 nearly always.
  const i64 chunks = column_chunks(n, inner);
  const Tensor partial =
      Tensor::empty({chunks, inner}, dtype_of<S>, device, MemoryClass::kWorkspace);
  for (i64 o = 0; o < outer; ++o) {
    column_sums<S>(device, n, inner, chunks, Column<T, S>{x.data<T>() + o * n * inner, inner},
                   partial.data<S>());
    for_each_row(
        device, inner, chunks,
        Finish<Out, S>{y.data<Out>() + o * inner, partial.data<S>(), inner, chunks, scale, beta});
  }
}

void sum_dispatch(const Tensor& y, const Tensor& x, i64 outer, i64 n, i64 inner, double scale,
                  double beta) {
  ledger::kernel({&x}, {&y}, double(x.numel()));
  visit_any(x.dtype(), [&]<class T>() {
    using S = typename SumType<T>::type;
    if constexpr (std::is_same_v<S, std::int64_t>) {
      check(y.dtype() == DType::i64, "sum: {} sums into i64, not {}", x.dtype(), y.dtype());
      sum_typed<T, std::int64_t>(y, x, outer, n, inner, scale, beta);
    } else if constexpr (std::is_same_v<T, double>) {
      check(y.dtype() == DType::f64, "sum: f64 sums into f64, not {}", y.dtype());
      sum_typed<T, double>(y, x, outer, n, inner, scale, beta);
    } else {
      if (y.dtype() == dtype_of<T>) {
        sum_typed<T, T>(y, x, outer, n, inner, scale, beta);
      } else {
        check(y.dtype() == DType::f32, "sum: {} sums into {} or f32, not {}", x.dtype(), x.dtype(),
              y.dtype());
        sum_typed<T, float>(y, x, outer, n, inner, scale, beta);
      }
    }
  });
}

}  // namespace

void fill(const Tensor& x, double value) {
  ledger::kernel({}, {&x});
  visit_any(x.dtype(), [&]<class T>() {
    if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
      for_each(x.device(), x.numel(), Fill<T>{x.data<T>(), T(float(value))});
    } else {
      for_each(x.device(), x.numel(), Fill<T>{x.data<T>(), T(value)});
    }
  });
}

void cast_into(const Tensor& to, const Tensor& from) {
  check(to.numel() == from.numel(), "cast: {} into {}", from, to);
  ledger::kernel({&from}, {&to});
  visit_any(from.dtype(), [&]<class From>() {
    visit_any(to.dtype(), [&]<class To>() {
      map(to.device(), to.numel(), Identity{}, to.data<To>(), from.data<From>());
    });
  });
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) {
    return x.detached();
  }
  const Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  cast_into(y, x);
  return y;
}

void add_into(const Tensor& to, const Tensor& from) {
  check(to.numel() == from.numel(), "accumulate: {} into {}", from, to);
  ledger::kernel({&to, &from}, {&to}, double(to.numel()));
  visit_float(to.dtype(), "accumulate", [&]<class To>() {
    visit_float(from.dtype(), "accumulate", [&]<class From>() {
      map(to.device(), to.numel(), Sum{}, to.data<To>(), to.data<To>(), from.data<From>());
    });
  });
}

Tensor scaled(const Tensor& x, const Tensor& scale) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  ledger::kernel({&x}, {&y}, double(x.numel()));
  visit_float(x.dtype(), "scale", [&]<class T>() {
    map(x.device(), x.numel(), Times{scale.data<float>()}, y.data<T>(), x.data<T>());
  });
  return y;
}

Tensor sum_middle(const Tensor& x, i64 outer, i64 n, i64 inner, DType dtype, double scale) {
  check(outer * n * inner == x.numel(), "sum: [{}, {}, {}] is not {}", outer, n, inner, x);
  const Tensor y = Tensor::empty({outer, inner}, dtype, x.device());
  sum_dispatch(y, x, outer, n, inner, scale, 0);
  return y;
}

void sum_middle_into(const Tensor& to, double beta, const Tensor& x, i64 outer, i64 n, i64 inner) {
  check(outer * n * inner == x.numel() && to.numel() == outer * inner,
        "sum: [{}, {}, {}] of {} into {}", outer, n, inner, x, to);
  sum_dispatch(to, x, outer, n, inner, 1, beta);
}

Tensor sum_to_shape(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) {
    return x;
  }
  // Leading axes that broadcasting added, then each run of axes that were 1.
  Tensor y = x;
  const int added = x.rank() - shape.rank();
  if (added > 0) {
    const i64 n = x.shape().numel(0, added);
    y = sum_middle(y, 1, n, x.shape().numel(added, x.rank()), x.dtype());
  }
  i64 outer = 1;
  for (int axis = 0; axis < shape.rank();) {
    if (shape[axis] == x.shape()[axis + added]) {
      outer *= shape[axis];
      ++axis;
      continue;
    }
    i64 n = 1;
    while (axis < shape.rank() && shape[axis] == 1) {
      n *= x.shape()[axis + added];
      ++axis;
    }
    const i64 inner = x.shape().numel(axis + added, x.rank());
    if (n != 1) {
      y = sum_middle(y, outer, n, inner, x.dtype());
    }
  }
  return y.view(shape);
}

}  // namespace penstock::kernels
