#include "trainers/device.h"

#include <algorithm>
#include <limits>

#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/core/random.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/blas.h"
#include "framework/kernels/onednn.h"
#include "framework/measure/clock.h"
#include "framework/ops/pointwise.h"

namespace penstock::trainers {
namespace {

DType dtype_of_precision(measure::Precision p) {
  return p == measure::Precision::kF16    ? DType::f16
         : p == measure::Precision::kBf16 ? DType::bf16
                                          : DType::f32;
}

// FLOP/s of a square product on random data: zeros would draw less power and run faster.
std::optional<double> matmul_rate(Device device, measure::Precision precision) {
  if (device.is_cpu() && (precision == measure::Precision::kF16 || precision == measure::Precision::kTf32 ||
                          (precision == measure::Precision::kBf16 && !kernels::cpu_bf16_usable()))) {
    return std::nullopt;
  }
  const i64 n = device.is_cuda() ? 8192 : 1024;
  const DType dtype = dtype_of_precision(precision);
  std::vector<float> values(std::size_t(n * n));
  random::Generator g(17, random::Stream::kSynthetic, 0, 0);
  for (float& v : values) {
    v = g.uniform(-1, 1);
  }
  const PersistentScope persistent;
  const bool tf32_before = kernels::tf32();
  kernels::set_tf32(precision == measure::Precision::kTf32);
  const Tensor wide = Tensor::from(values, {n, n}, device);
  const Tensor a = kernels::cast(wide, dtype);
  const Tensor b = kernels::cast(wide, dtype);
  const Tensor c = Tensor::empty({n, n}, dtype, device);
  kernels::Gemm gemm;
  gemm.a = a;
  gemm.b = b;
  gemm.c = c;
  gemm.m = gemm.n = gemm.k = n;
  const auto sync = [&] {
    if (device.is_cuda()) {
      cuda::synchronize(cuda::compute_stream());
    }
  };
  kernels::gemm(gemm);
  sync();
  double best = 0;
  const int repeats = device.is_cuda() ? 8 : 1;
  for (int i = 0; i < 8; ++i) {
    const double begin = measure::monotonic_seconds();
    for (int k = 0; k < repeats; ++k) {
      kernels::gemm(gemm);
    }
    sync();
    const double seconds = measure::monotonic_seconds() - begin;
    best = std::max(best, repeats * 2.0 * double(n) * double(n) * double(n) / seconds);
  }
  kernels::set_tf32(tf32_before);
  return best;
}

double cuda_triad() {
  const i64 n = i64{256} << 20;  // 1 GiB each, far beyond the last-level cache
  const PersistentScope persistent;
  const Tensor a = Tensor::zeros({n}, DType::f32, kCuda);
  const Tensor b = Tensor::zeros({n}, DType::f32, kCuda);
  const Tensor c = Tensor::zeros({n}, DType::f32, kCuda);
  (void)b;
  double best = 0;
  cuda::Event begin(true);
  cuda::Event end(true);
  for (int i = 0; i < 10; ++i) {
    begin.record(cuda::compute_stream());
    // c += a reads two arrays and writes one, as a triad does.
    kernels::add_into(c, a);
    end.record(cuda::compute_stream());
    end.synchronize();
    best = std::max(best, 3.0 * double(n) * 4 / (double(end.milliseconds_since(begin)) * 1e-3));
  }
  return best;
}

}  // namespace

measure::Ceilings device_ceilings(Device device, int threads) {
  if (device.is_cuda()) {
    return measure::ceilings(
        measure::cuda_key(),
        {.triad = cuda_triad, .matmul = [](measure::Precision p) { return matmul_rate(kCuda, p); }});
  }
  return measure::ceilings(
      measure::cpu_key(threads),
      {.triad = [threads] { return measure::cpu_triad(threads); },
       .matmul = [](measure::Precision p) { return matmul_rate(kCpu, p); }});
}

double matmul_ceiling(const measure::Ceilings& c, measure::Precision p) {
  return c.flops_of(p).value_or(c.flops_of(measure::Precision::kF32).value_or(0));
}

i64 device_capacity(const Setup& setup) {
  const Device device = setup.device;
  const i64 held = memory::stats(device, Region::kPersistent).committed +
                   memory::stats(device, Region::kStep).committed;
  const i64 free = (device.is_cuda() ? cuda::free_memory() : machine::available_memory()) + held;
  const i64 margin = std::max(free * 3 / 100, i64{256} << 20);
  i64 capacity = free - margin;
  if (device.is_cpu()) {
    capacity -= setup.config.loader.max_bytes;  // the ring lives in the same memory
  }
  if (setup.config.memory.limit > 0) {
    capacity = std::min(capacity, setup.config.memory.limit);
  }
  return std::max<i64>(0, capacity);
}

std::string device_name(Device device) {
  return device.is_cuda() ? cuda::info().name : machine::cpu_name();
}

std::unique_ptr<measure::BandwidthMeter> make_meter(Device device, const measure::Ceilings* ceilings) {
  measure::MeterOptions options;
  if (device.is_cuda()) {
    options.pci_bus_id = cuda::info().pci_bus_id;
    options.theoretical = cuda::info().peak_bytes_per_second;
  }
  if (ceilings != nullptr) {
    options.achievable = ceilings->bytes_per_second;
  }
  return std::make_unique<measure::BandwidthMeter>(options);
}

}  // namespace penstock::trainers
