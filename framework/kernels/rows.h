// Row kernels (softmax, norms, losses, reductions) written once for both devices.
//
//   for_each_row(device, rows, cols, f);     // f(team, row)
//
// A Team is the threads that share one row: one CPU thread, a CUDA warp or a CUDA block. `each`
// visits the columns, `sum` and `max` return their result to every thread of the team, `leader()`
// is true on exactly one. sum_of, max_of and write go over arrays, 16 bytes at a time where a GPU
// can. Reductions on the CPU keep kLanes partial sums, so they vectorise and give the same bits at
// every instruction-set level.
#pragma once

#include "framework/kernels/launch.h"

namespace penstock::kernels {

// N elements that are read or written at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
template <class... T>
PENSTOCK_HD constexpr int pack_length() {
  int n = 16;
  ((n = n < int(16 / sizeof(T)) ? n : int(16 / sizeof(T))), ...);
  return n;
}
template <int N, class T>
PENSTOCK_HD bool pack_aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (sizeof(T) * N) == 0;
}

class SerialTeam {
 public:
  static constexpr int kLanes = 16;

  // Sum of g(i, x[i]...) over i in [0, n).
  template <class G, class... T>
  PENSTOCK_HD auto sum_of(i64 n, G g, const T*... x) const {
    return sum(n, [&](i64 i) { return g(i, load(x[i])...); });
  }
  // Largest x[i], `lowest` when n is 0.
  template <class S, class T>
  PENSTOCK_HD S max_of(i64 n, S lowest, const T* x) const {
    return max(n, lowest, [&](i64 i) { return S(load(x[i])); });
  }
  // y[i] = g(i, x[i]...); y may be one of the x.
  template <class Out, class G, class... T>
  PENSTOCK_HD void write(i64 n, Out* y, G g, const T*... x) const {
    each(n, [&](i64 i) { y[i] = store<Out>(g(i, load(x[i])...)); });
  }
  // g(i) in order for every i in [0, n) with wanted(i); the whole team runs each g.
  template <class W, class G>
  PENSTOCK_HD void each_match(i64 n, W wanted, G g) const {
    for (i64 i = 0; i < n; ++i) {
      if (wanted(i)) {
        g(i);
      }
    }
  }

  template <class G>
  PENSTOCK_HD void each(i64 n, G g) const {
#pragma GCC ivdep
    for (i64 i = 0; i < n; ++i) {
      g(i);
    }
  }
  template <class G>
  PENSTOCK_HD auto sum(i64 n, G g) const {
    using T = decltype(g(i64(0)));
    T lanes[kLanes] = {};
    i64 i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) {
        lanes[k] += g(i + k);
      }
    }
    for (; i < n; ++i) {
      lanes[i % kLanes] += g(i);
    }
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int k = 0; k < width; ++k) {
        lanes[k] += lanes[k + width];
      }
    }
    return lanes[0];
  }
  // Largest g(i), `lowest` when n is 0. A NaN among the values is not looked for.
  template <class G, class T>
  PENSTOCK_HD T max(i64 n, T lowest, G g) const {
    T lanes[kLanes];
    for (int k = 0; k < kLanes; ++k) {
      lanes[k] = lowest;
    }
    i64 i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) {
        const T v = g(i + k);
        lanes[k] = v > lanes[k] ? v : lanes[k];
      }
    }
    for (; i < n; ++i) {
      const T v = g(i);
      lanes[i % kLanes] = v > lanes[i % kLanes] ? v : lanes[i % kLanes];
    }
    T best = lowest;
    for (int k = 0; k < kLanes; ++k) {
      best = lanes[k] > best ? lanes[k] : best;
    }
    return best;
  }
  PENSTOCK_HD bool leader() const {
    return true;
  }
  // Orders what the team wrote before with what it reads after.
  PENSTOCK_HD void sync() const {}
};

namespace cpu {

template <class F>
PENSTOCK_V4 void rows_v4(F f, i64 begin, i64 end) {
  for (i64 row = begin; row < end; ++row) {
    f(SerialTeam{}, row);
  }
}
template <class F>
PENSTOCK_V3 void rows_v3(F f, i64 begin, i64 end) {
  for (i64 row = begin; row < end; ++row) {
    f(SerialTeam{}, row);
  }
}
template <class F>
PENSTOCK_V1 void rows_v1(F f, i64 begin, i64 end) {
  for (i64 row = begin; row < end; ++row) {
    f(SerialTeam{}, row);
  }
}

}  // namespace cpu

#ifdef __CUDACC__
namespace gpu {

template <class T>
struct Add {
  __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Larger {
  __device__ T operator()(T a, T b) const { return b > a ? b : a; }
};

template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T v, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    v = op(v, __shfl_xor_sync(0xffffffffu, v, offset));
  }
  return v;
}

// Threads threads share a row: 32 is one warp (several rows a block), more is a whole block.
template <int Threads>
class Team {
 public:
  __device__ explicit Team(void* scratch) : scratch_(scratch) {}

  template <class G>
  __device__ void each(i64 n, G g) const {
    for (i64 i = lane(); i < n; i += Threads) {
      g(i);
    }
  }
  template <class G>
  __device__ auto sum(i64 n, G g) const {
    using T = decltype(g(i64(0)));
    T v = 0;
    for (i64 i = lane(); i < n; i += Threads) {
      v += g(i);
    }
    return reduce(v, Add<T>{}, T(0));
  }
  template <class G, class T>
  __device__ T max(i64 n, T lowest, G g) const {
    T v = lowest;
    for (i64 i = lane(); i < n; i += Threads) {
      const T next = g(i);
      v = next > v ? next : v;
    }
    return reduce(v, Larger<T>{}, lowest);
  }
  template <class G, class... T>
  __device__ auto sum_of(i64 n, G g, const T*... x) const {
    constexpr int kN = pack_length<T...>();
    using R = decltype(g(i64(0), load(*x)...));
    R v = 0;
    i64 done = 0;
    if ((pack_aligned<kN>(x) && ...)) {
      done = n / kN * kN;
      for (i64 i = i64(lane()) * kN; i < done; i += i64(Threads) * kN) {
        add_pack<kN>(v, i, g, *reinterpret_cast<const Pack<T, kN>*>(x + i)...);
      }
    }
    for (i64 i = done + lane(); i < n; i += Threads) {
      v += g(i, load(x[i])...);
    }
    return reduce(v, Add<R>{}, R(0));
  }
  template <class S, class T>
  __device__ S max_of(i64 n, S lowest, const T* x) const {
    constexpr int kN = pack_length<T>();
    S v = lowest;
    i64 done = 0;
    if (pack_aligned<kN>(x)) {
      done = n / kN * kN;
      for (i64 i = i64(lane()) * kN; i < done; i += i64(Threads) * kN) {
        const Pack<T, kN> p = *reinterpret_cast<const Pack<T, kN>*>(x + i);
#pragma unroll
        for (int k = 0; k < kN; ++k) {
          const S next = S(load(p.v[k]));
          v = next > v ? next : v;
        }
      }
    }
    for (i64 i = done + lane(); i < n; i += Threads) {
      const S next = S(load(x[i]));
      v = next > v ? next : v;
    }
    return reduce(v, Larger<S>{}, lowest);
  }
  template <class Out, class G, class... T>
  __device__ void write(i64 n, Out* y, G g, const T*... x) const {
    constexpr int kN = pack_length<Out, T...>();
    i64 done = 0;
    if (pack_aligned<kN>(y) && (pack_aligned<kN>(x) && ...)) {
      done = n / kN * kN;
      for (i64 i = i64(lane()) * kN; i < done; i += i64(Threads) * kN) {
        Pack<Out, kN> out;
        write_pack<kN>(out, i, g, *reinterpret_cast<const Pack<T, kN>*>(x + i)...);
        *reinterpret_cast<Pack<Out, kN>*>(y + i) = out;
      }
    }
    for (i64 i = done + lane(); i < n; i += Threads) {
      y[i] = store<Out>(g(i, load(x[i])...));
    }
  }
  template <class W, class G>
  __device__ void each_match(i64 n, W wanted, G g) const {
    // Every warp of the team looks at 32 candidates at once and finds the same ones.
    const int own = threadIdx.x % 32;
    for (i64 base = 0; base < n; base += 32) {
      unsigned found = __ballot_sync(0xffffffffu, base + own < n && wanted(base + own));
      while (found != 0) {
        g(base + __ffs(int(found)) - 1);
        found &= found - 1;
      }
    }
  }
  __device__ bool leader() const {
    return lane() == 0;
  }
  __device__ void sync() const {
    if constexpr (Threads == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  __device__ int lane() const {
    return Threads == 32 ? threadIdx.x % 32 : threadIdx.x;
  }

 private:
  template <int N, class R, class G, class... P>
  static __device__ __forceinline__ void add_pack(R& v, i64 i, G& g, const P&... p) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      v += g(i + k, load(p.v[k])...);
    }
  }
  template <int N, class Out, class G, class... P>
  static __device__ __forceinline__ void write_pack(Pack<Out, N>& y, i64 i, G& g, const P&... p) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      y.v[k] = store<Out>(g(i + k, load(p.v[k])...));
    }
  }
  template <class T, class Op>
  __device__ T reduce(T v, Op op, T neutral) const {
    v = warp_reduce(v, op);
    if constexpr (Threads > 32) {
      T* partial = static_cast<T*>(scratch_);
      __syncthreads();  // the scratch of the reduction before may still be read
      if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = v;
      }
      __syncthreads();
      v = threadIdx.x % 32 < Threads / 32 ? partial[threadIdx.x % 32] : neutral;
      v = warp_reduce(v, op);
    }
    return v;
  }
  void* scratch_;
};

template <class F>
__global__ void warp_rows_kernel(F f, i64 rows) {
  const i64 row = i64(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row < rows) {
    f(Team<32>(nullptr), row);
  }
}
template <int Threads, class F>
__global__ void __launch_bounds__(Threads) block_rows_kernel(F f, i64 rows) {
  __shared__ double scratch[32];
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    f(Team<Threads>(scratch), row);
  }
}

}  // namespace gpu
#endif  // __CUDACC__

// f(team, row) for every row in [0, rows); `cols` is how much work a row holds. `f` is a struct
// with `template <class Team> PENSTOCK_HD void operator()(const Team& team, i64 row) const`.
template <class F>
void for_each_row(Device device, i64 rows, i64 cols, const F& f) {
  if (rows <= 0 || device.is_meta()) {
    return;
  }
  if (device.is_cpu()) {
    const i64 grain = cols > 0 ? (kGrain / 2 + cols - 1) / cols : kGrain;
    const auto work = [&](i64 begin, i64 end) {
      switch (machine::isa()) {
        case machine::Isa::kV4: cpu::rows_v4(f, begin, end); return;
        case machine::Isa::kV3: cpu::rows_v3(f, begin, end); return;
        case machine::Isa::kBaseline: cpu::rows_v1(f, begin, end); return;
      }
    };
    parallel::rows(rows, grain, work);
    return;
  }
#ifdef __CUDACC__
  if constexpr (!cpu_only<F>) {
    if (cols <= 1024) {
      constexpr int kThreads = 128;
      const i64 blocks = (rows + kThreads / 32 - 1) / (kThreads / 32);
      gpu::warp_rows_kernel<<<unsigned(blocks), kThreads, 0, gpu::stream()>>>(f, rows);
    } else {
      const unsigned blocks = unsigned(rows < (i64(1) << 20) ? rows : (i64(1) << 20));
      if (cols <= 8192) {
        gpu::block_rows_kernel<256><<<blocks, 256, 0, gpu::stream()>>>(f, rows);
      } else {
        gpu::block_rows_kernel<1024><<<blocks, 1024, 0, gpu::stream()>>>(f, rows);
      }
    }
    gpu::check_launch();
  }
#endif
}

// ---- sums over rows, one for each column -------------------------------------------------------

// How many pieces the rows are cut into: a function of the shape alone, so that the order of
// additions, and with it every bit, does not depend on threads or device load.
inline i64 column_chunks(i64 rows, i64 cols) {
  const i64 by_rows = (rows + 31) / 32;
  const i64 by_width = cols > 0 ? (i64(1) << 18) / cols + 1 : 1;
  const i64 chunks = by_rows < by_width ? by_rows : by_width;
  return chunks < 1 ? 1 : chunks > 256 ? 256 : chunks;
}

template <class F, class T>
struct ColumnSums {
  static constexpr bool kCpuOnly = cpu_only<F>;
  static constexpr int kTile = 64;
  F value;
  i64 rows;
  i64 cols;
  i64 chunks;
  T* partial;  // [chunks, cols]

  PENSTOCK_HD i64 first_row(i64 chunk) const { return rows * chunk / chunks; }
  // CPU: one (chunk, tile of columns).
  template <class Team>
  PENSTOCK_HD void operator()(const Team& /*team*/, i64 item) const {
    const i64 tiles = (cols + kTile - 1) / kTile;
    const i64 chunk = item / tiles;
    const i64 begin = item % tiles * kTile;
    const i64 end = first_row(chunk + 1);
    T* out = partial + chunk * cols + begin;
    if (begin + kTile <= cols) {
      T sums[kTile] = {};
      for (i64 r = first_row(chunk); r < end; ++r) {
#pragma GCC ivdep
        for (int k = 0; k < kTile; ++k) {
          sums[k] += value(r, begin + k);
        }
      }
      for (int k = 0; k < kTile; ++k) {
        out[k] = sums[k];
      }
    } else {
      for (i64 c = begin; c < cols; ++c) {
        T sum = {};
        for (i64 r = first_row(chunk); r < end; ++r) {
          sum += value(r, c);
        }
        out[c - begin] = sum;
      }
    }
  }
};

#ifdef __CUDACC__
namespace gpu {
template <class F, class T>
__global__ void __launch_bounds__(256) column_kernel(ColumnSums<F, T> f) {
  __shared__ T partial[8][33];
  const i64 chunk = blockIdx.y;
  const i64 col = i64(blockIdx.x) * 32 + threadIdx.x;
  T sum = {};
  if (col < f.cols) {
    const i64 end = f.first_row(chunk + 1);
    for (i64 r = f.first_row(chunk) + threadIdx.y; r < end; r += 8) {
      sum += f.value(r, col);
    }
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && col < f.cols) {
    for (int k = 1; k < 8; ++k) {
      sum += partial[k][threadIdx.x];
    }
    f.partial[chunk * f.cols + col] = sum;
  }
}
// The same for values that come kPack columns at once: `value.add(row, col, sums)` adds to kPack
// sums.
template <class F, class T>
__global__ void __launch_bounds__(256) column_pack_kernel(ColumnSums<F, T> f) {
  constexpr int kN = F::kPack;
  extern __shared__ __align__(16) unsigned char memory[];
  T* shared = reinterpret_cast<T*>(memory);  // [y][x * kN]
  const i64 chunk = blockIdx.y;
  const i64 col = (i64(blockIdx.x) * blockDim.x + threadIdx.x) * kN;
  T sums[kN] = {};
  if (col < f.cols) {
    const i64 end = f.first_row(chunk + 1);
#pragma unroll 4
    for (i64 r = f.first_row(chunk) + threadIdx.y; r < end; r += blockDim.y) {
      f.value.add(r, col, sums);
    }
  }
  T* mine = shared + (threadIdx.y * blockDim.x + threadIdx.x) * kN;
#pragma unroll
  for (int k = 0; k < kN; ++k) {
    mine[k] = sums[k];
  }
  __syncthreads();
  // One thread a column adds the block's rows up, always in the same order.
  const int width = int(blockDim.x) * kN;
  for (int c = int(threadIdx.y * blockDim.x + threadIdx.x); c < width; c += 256) {
    const i64 to = i64(blockIdx.x) * width + c;
    if (to < f.cols) {
      T sum = shared[c];
      for (int y = 1; y < int(blockDim.y); ++y) {
        sum += shared[y * width + c];
      }
      f.partial[chunk * f.cols + to] = sum;
    }
  }
}
}  // namespace gpu
#endif

// partial[chunk][col] = sum of value(row, col) over the rows of the chunk; T needs += and T{} == 0.
// The caller adds the chunks up, in order.
template <class T, class F>
void column_sums(Device device, i64 rows, i64 cols, i64 chunks, const F& value, T* partial) {
  if (cols <= 0 || device.is_meta()) {
    return;
  }
  const ColumnSums<F, T> f{value, rows, cols, chunks, partial};
  if (device.is_cpu()) {
    const i64 tiles = (cols + ColumnSums<F, T>::kTile - 1) / ColumnSums<F, T>::kTile;
    for_each_row(device, chunks * tiles, rows / chunks * ColumnSums<F, T>::kTile, f);
    return;
  }
#ifdef __CUDACC__
  if constexpr (!cpu_only<F> && requires { F::kPack; }) {
    if (value.packs(cols)) {
      unsigned x = 1;
      while (x < 32 && x * F::kPack < cols) {
        x *= 2;
      }
      const dim3 grid(unsigned((cols / F::kPack + x - 1) / x), unsigned(chunks));
      gpu::
          column_pack_kernel<<<grid, dim3(x, 256 / x), 256 * F::kPack * sizeof(T), gpu::stream()>>>(
              f);
      gpu::check_launch();
      return;
    }
  }
  if constexpr (!cpu_only<F>) {
    const dim3 grid(unsigned((cols + 31) / 32), unsigned(chunks));
    gpu::column_kernel<<<grid, dim3(32, 8), 0, gpu::stream()>>>(f);
    gpu::check_launch();
  }
#endif
}

}  // namespace penstock::kernels
