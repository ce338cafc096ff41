// Launching own kernels on either device from one source. Included by kernel files (.cu) only.
//
//   map(device, n, Silu{}, y, x)            y[i] = f(x[i]), any dtype at the edge
//   for_each(device, n, Gather{...})        f(i) for i in [0, n)
//
// A functor's arithmetic is written once, as a template over the compute type. On the CPU each loop
// is instantiated for x86-64 baseline, v3 and v4 and chosen at run time; on CUDA accesses are 16
// bytes wide where alignment allows. On meta nothing runs.
#pragma once

#include <cstdint>
#include <type_traits>

#include "framework/core/cuda.h"
#include "framework/core/device.h"
#include "framework/core/dtype.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/target.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace penstock::kernels {

// An element as the arithmetic sees it: halves as float, everything else as it is.
template <class T>
PENSTOCK_HD auto load(T value) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    return float(value);
  } else {
    return value;
  }
}
template <class T, class V>
PENSTOCK_HD T store(V value) {
  if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) {
    return T(float(value));
  } else {
    return T(value);
  }
}

// A functor of the f64 path says so: device code for it would cost compile time for nothing.
template <class F>
inline constexpr bool cpu_only = requires { requires F::kCpuOnly; };

// Elements per thread below which splitting costs more than it gains.
inline constexpr i64 kGrain = 16384;

// ---- CPU loops ---------------------------------------------------------------------------------

#define PENSTOCK_V3 __attribute__((target("arch=x86-64-v3"), noinline))
#define PENSTOCK_V4 __attribute__((target("arch=x86-64-v4,prefer-vector-width=512"), noinline))
#define PENSTOCK_V1 __attribute__((noinline))

namespace cpu {

// Iterations are independent by contract: a kernel reads inputs and writes other memory, or writes
// the very element it read. ivdep tells the vectoriser so.
template <class F>
PENSTOCK_V4 void each_v4(F f, i64 begin, i64 end) {
#pragma GCC ivdep
  for (i64 i = begin; i < end; ++i) {
    f(i);
  }
}
template <class F>
PENSTOCK_V3 void each_v3(F f, i64 begin, i64 end) {
#pragma GCC ivdep
  for (i64 i = begin; i < end; ++i) {
    f(i);
  }
}
template <class F>
PENSTOCK_V1 void each_v1(F f, i64 begin, i64 end) {
#pragma GCC ivdep
  for (i64 i = begin; i < end; ++i) {
    f(i);
  }
}

template <class F, class Out, class... In>
PENSTOCK_V4 void map_v4(F f, i64 begin, i64 end, Out* y, const In*... x) {
#pragma GCC ivdep
  for (i64 i = begin; i < end; ++i) {
    y[i] = store<Out>(f(load(x[i])...));
  }
}
template <class F, class Out, class... In>
PENSTOCK_V3 void map_v3(F f, i64 begin, i64 end, Out* y, const In*... x) {
#pragma GCC ivdep
  for (i64 i = begin; i < end; ++i) {
    y[i] = store<Out>(f(load(x[i])...));
  }
}
template <class F, class Out, class... In>
PENSTOCK_V1 void map_v1(F f, i64 begin, i64 end, Out* y, const In*... x) {
#pragma GCC ivdep
  for (i64 i = begin; i < end; ++i) {
    y[i] = store<Out>(f(load(x[i])...));
  }
}

}  // namespace cpu

// ---- CUDA kernels ------------------------------------------------------------------------------

#ifdef __CUDACC__
namespace gpu {

inline cudaStream_t stream() { return static_cast<cudaStream_t>(cuda::compute_stream()); }

// A launch that was refused says so here, not at the next call.
void check_launch();

template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T v[N];
};

template <class F>
__global__ void each_kernel(F f, i64 n) {
  const i64 stride = i64(gridDim.x) * blockDim.x;
  for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    f(i);
  }
}

template <class F, class Out, class... In>
__global__ void map_kernel(F f, i64 n, Out* y, const In*... x) {
  const i64 stride = i64(gridDim.x) * blockDim.x;
  for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    y[i] = store<Out>(f(load(x[i])...));
  }
}

template <int N, class F, class Out, class... In>
__device__ __forceinline__ void map_vec(F f, Vec<Out, N>& y, const Vec<In, N>&... x) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    y.v[k] = store<Out>(f(load(x.v[k])...));
  }
}

// Each thread handles kUnroll vectors of N elements; the tail is done one by one by the last block.
template <int N, class F, class Out, class... In>
__global__ void map_vec_kernel(F f, i64 n, Out* y, const In*... x) {
  const i64 vectors = n / N;
  const i64 stride = i64(gridDim.x) * blockDim.x;
  const i64 first = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (i64 i = first; i < vectors; i += stride) {
    Vec<Out, N> out;
    map_vec<N>(f, out, reinterpret_cast<const Vec<In, N>*>(x)[i]...);
    reinterpret_cast<Vec<Out, N>*>(y)[i] = out;
  }
  const i64 i = vectors * N + first;
  if (i < n) {
    y[i] = store<Out>(f(load(x[i])...));
  }
}

// Blocks for `items` threads' work: enough to fill any GPU several times over, not more.
inline unsigned blocks_for(i64 items, int threads) {
  const i64 blocks = (items + threads - 1) / threads;
  return unsigned(blocks < 65536 ? (blocks > 0 ? blocks : 1) : 65536);
}

template <int N, class T>
bool aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (sizeof(T) * N) == 0;
}

constexpr int min_of(int a, int b) { return a < b ? a : b; }
template <class... T>
constexpr int vector_length() {
  // The widest type moves 16 bytes at once; narrower ones move as many elements.
  int n = 16;
  ((n = min_of(n, int(16 / sizeof(T)))), ...);
  return n;
}

}  // namespace gpu
#endif  // __CUDACC__

// ---- launchers ---------------------------------------------------------------------------------

// f(i) for every i in [0, n). `f` is a struct with a PENSTOCK_HD operator()(i64) const.
template <class F>
void for_each(Device device, i64 n, const F& f, i64 grain = kGrain) {
  if (n <= 0 || device.is_meta()) {
    return;
  }
  if (device.is_cpu()) {
    parallel::run(n, grain, [&](i64 begin, i64 end) {
      switch (machine::isa()) {
        case machine::Isa::kV4: cpu::each_v4(f, begin, end); return;
        case machine::Isa::kV3: cpu::each_v3(f, begin, end); return;
        case machine::Isa::kBaseline: cpu::each_v1(f, begin, end); return;
      }
    });
    return;
  }
#ifdef __CUDACC__
  if constexpr (!cpu_only<F>) {
    gpu::each_kernel<<<gpu::blocks_for(n, 256), 256, 0, gpu::stream()>>>(f, n);
    gpu::check_launch();
  }
#endif
}

// y[i] = f(x[i]...) for every i in [0, n); y may be one of the x.
template <class F, class Out, class... In>
void map(Device device, i64 n, const F& f, Out* y, const In*... x) {
  if (n <= 0 || device.is_meta()) {
    return;
  }
  if (device.is_cpu()) {
    parallel::run(n, kGrain, [&](i64 begin, i64 end) {
      switch (machine::isa()) {
        case machine::Isa::kV4: cpu::map_v4(f, begin, end, y, x...); return;
        case machine::Isa::kV3: cpu::map_v3(f, begin, end, y, x...); return;
        case machine::Isa::kBaseline: cpu::map_v1(f, begin, end, y, x...); return;
      }
    });
    return;
  }
#ifdef __CUDACC__
  // f64 lives on the CPU only; instantiating it for the device would cost compile time for nothing.
  if constexpr (!cpu_only<F> && !std::is_same_v<Out, double> &&
                (!std::is_same_v<In, double> && ...)) {
    constexpr int kN = gpu::vector_length<Out, In...>();
    if (kN > 1 && gpu::aligned<kN>(y) && (gpu::aligned<kN>(x) && ...)) {
      gpu::map_vec_kernel<kN>
          <<<gpu::blocks_for(n / kN + 1, 256), 256, 0, gpu::stream()>>>(f, n, y, x...);
    } else {
      gpu::map_kernel<<<gpu::blocks_for(n, 256), 256, 0, gpu::stream()>>>(f, n, y, x...);
    }
    gpu::check_launch();
  }
#endif
}

}  // namespace penstock::kernels
