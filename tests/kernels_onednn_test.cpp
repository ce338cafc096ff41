// The oneDNN plugin: its workspaces in the memory plan, its cache, its team, and machines without it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>

#include "framework/core/memory.h"
#include "framework/core/parallel.h"
#include "framework/kernels/attention.h"
#include "framework/kernels/blas.h"
#include "framework/kernels/dnn.h"
#include "framework/kernels/onednn.h"
#include "tests/kernels_helpers.h"

namespace penstock::kernels {
namespace {

using kernel_test::random_tensor;

Conv conv(i64 n, i64 size, i64 channels, i64 filters, i64 kernel, i64 stride, i64 groups = 1) {
  Conv c;
  c.n = n;
  c.channels = channels;
  c.filters = filters;
  c.groups = groups;
  c.in = {1, size, size};
  c.kernel = {1, kernel, kernel};
  c.stride = {1, stride, stride};
  c.pad = {0, kernel / 2, kernel / 2};
  return c;
}

// High-water mark of the step region over `body`, which allocates on `device`.
template <class F>
i64 high_water(Device device, F body) {
  StepScope step(device);
  memory::reset_high_water(device);
  body();
  const i64 mark = memory::stats(device, Region::kStep).high_water;
  step.close();
  return mark;
}

void run_convolutions(Device device, DType dtype) {
  for (const Conv& c : {conv(2, 20, 3, 24, 3, 1), conv(2, 17, 32, 48, 3, 2),
                        conv(3, 14, 64, 128, 1, 2), conv(1, 16, 24, 24, 3, 1, 24)}) {
    const Tensor x = Tensor::zeros({c.n, c.in[1], c.in[2], c.channels}, dtype, device);
    const Tensor w = Tensor::zeros(
        {c.filters, c.kernel[1], c.kernel[2], c.channels / c.groups}, dtype, device);
    const Tensor y = Tensor::zeros({c.n, c.out(1), c.out(2), c.filters}, dtype, device);
    const Tensor dw = Tensor::zeros(w.shape(), DType::f32, device);
    conv_forward(c, {.x = x, .w = w, .bias = Tensor(), .y = y, .relu = true});
    conv_backward_data(c, y, w, x);
    conv_backward_weights(c, x, y, dw, 0);
    conv_backward_weights(c, x, y, dw, 1);
  }
}

void run_products(Device device, DType dtype) {
  for (const bool trans : {false, true}) {
    const Tensor a = Tensor::zeros({300, 1100}, dtype, device);
    const Tensor b = Tensor::zeros({1100, 70}, dtype, device);
    const Tensor c = Tensor::zeros({300, 70}, DType::f32, device);
    gemm({.a = a, .b = b, .c = c, .m = 300, .n = 70, .k = 1100, .trans_a = trans, .trans_b = trans});
  }
  const Tensor qkv = Tensor::zeros({2, 200, 3, 4, 32}, dtype, device);
  const Tensor y = Tensor::zeros({2, 200, 4, 32}, dtype, device);
  const Tensor saved = Tensor::zeros({2, 4, 200}, DType::f32, device);
  const Attention a{.batch = 2, .time = 200, .heads = 4, .width = 32, .causal = true, .scale = 1};
  attention_forward(a, qkv, Tensor(), y, saved);
  attention_backward(a, qkv, Tensor(), y, saved, y, qkv);
}

TEST(Onednn, WorkspacesOnMetaEqualTheRealHighWaterToTheByte) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (dtype == DType::bf16 && !cpu_bf16_usable()) {
      continue;
    }
    for (const int threads : {1, 2}) {
      const int before = parallel::threads();
      parallel::set_threads(threads);
      const auto body = [&](Device device) {
        return high_water(device, [&] {
          run_convolutions(device, dtype);
          run_products(device, dtype);
        });
      };
      const i64 planned = body(meta_of(kCpu));
      EXPECT_EQ(planned, body(kCpu)) << name_of(dtype) << " with " << threads << " threads";
      EXPECT_EQ(planned, body(meta_of(kCpu)));
      parallel::set_threads(before);
    }
  }
}

TEST(Onednn, WorkspaceIsHeldOnlyDuringTheCall) {
  const Conv c = conv(2, 20, 64, 64, 3, 1);
  const i64 before = memory::used(kCpu, MemoryClass::kWorkspace);
  const Tensor x = random_tensor({2, 20, 20, 64}, DType::f32, 1);
  const Tensor w = random_tensor({64, 3, 3, 64}, DType::f32, 2);
  conv_forward(c, {.x = x, .w = w, .bias = Tensor(), .y = Tensor::zeros(x.shape(), DType::f32, kCpu)});
  EXPECT_EQ(memory::used(kCpu, MemoryClass::kWorkspace), before);
}

TEST(Onednn, CacheIsBoundedAndProblemsSurviveTheirEviction) {
  const PenstockOnednnPlugin* library = onednn();
  if (library == nullptr) {
    GTEST_SKIP() << "built without oneDNN";
  }
  PenstockOnednnMatmul d{};
  d.m = 3;
  d.n = 4;
  d.k = 5;
  d.batch = 1;
  d.lda = 5;
  d.ldb = 4;
  d.ldc = 4;
  d.dtype = d.dtype_c = int32_t(DType::f32);
  d.alpha = 1;
  const OnednnProblem held(d);
  for (i64 m = 4; m < library->capacity() + 40; ++m) {
    d.m = m;
    ASSERT_TRUE(bool(OnednnProblem(d)));
  }
  EXPECT_EQ(library->cached(), library->capacity());
  const Tensor a = random_tensor({3, 5}, DType::f32, 1);
  const Tensor b = random_tensor({5, 4}, DType::f32, 2);
  const Tensor c = Tensor::zeros({3, 4}, DType::f32, kCpu);
  const Tensor again = Tensor::zeros({3, 4}, DType::f32, kCpu);
  held.run({.a = a.raw(), .b = b.raw(), .bias = nullptr, .c = c.raw(), .workspace = nullptr}, kCpu);
  gemm({.a = a, .b = b, .c = again, .m = 3, .n = 4, .k = 5});
  EXPECT_EQ(c.values<float>(), again.values<float>());
}

TEST(Onednn, ProblemsMayRunOnSeveralThreadsAtOnce) {
  const Tensor a = random_tensor({64, 80}, DType::f32, 1);
  const Tensor b = random_tensor({80, 48}, DType::f32, 2);
  const Tensor expected = Tensor::zeros({64, 48}, DType::f32, kCpu);
  gemm({.a = a, .b = b, .c = expected, .m = 64, .n = 48, .k = 80});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const parallel::SerialScope serial;
      for (int i = 0; i < 50; ++i) {
        const Tensor c = Tensor::zeros({64, 48}, DType::f32, kCpu);
        gemm({.a = a, .b = b, .c = c, .m = 64, .n = 48, .k = 80});
        wrong += c.values<float>() != expected.values<float>() ? 1 : 0;
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Onednn, TeamRunsEveryIndexOnceAndOnItsThreads) {
  const PenstockOnednnPlugin* library = onednn();
  if (library == nullptr || library->parallel == nullptr) {
    GTEST_SKIP() << "built without oneDNN, or with another thread runtime";
  }
  for (const int count : {1, 2, 3, 7}) {
    std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
    library->parallel(
        count,
        [](void* context, int index) {
          ++(*static_cast<std::vector<std::atomic<int>>*>(context))[std::size_t(index)];
        },
        &seen);
    for (const auto& s : seen) {
      EXPECT_EQ(s, 1);
    }
  }
  // Exceptions of a body come back to the caller of parallel::run(), not into the team.
  EXPECT_THROW(parallel::run(1 << 20, 1, [](i64, i64) { throw Error("from a body"); }), Error);
}

TEST(Onednn, StatusNamesVersionAndInstructionSet) {
  if (onednn() == nullptr) {
    GTEST_SKIP() << "built without oneDNN";
  }
  EXPECT_NE(onednn_status().find("oneDNN "), std::string::npos);
}

// ---- other machines: each in a process of its own, where nothing is opened yet -------------------

double product_error() {
  const Tensor a = random_tensor({17, 33}, DType::f32, 1);
  const Tensor b = random_tensor({33, 9}, DType::f32, 2);
  const Tensor c = Tensor::zeros({17, 9}, DType::f32, kCpu);
  gemm({.a = a, .b = b, .c = c, .m = 17, .n = 9, .k = 33});
  const Tensor a64 = random_tensor({17, 33}, DType::f64, 1);
  const Tensor b64 = random_tensor({33, 9}, DType::f64, 2);
  const Tensor c64 = Tensor::zeros({17, 9}, DType::f64, kCpu);
  gemm({.a = a64, .b = b64, .c = c64, .m = 17, .n = 9, .k = 33});
  return kernel_test::distance(c, c64);
}

// Exits with 0 when bf16 is refused with words that say why, and f32 is right.
[[noreturn]] void refuses_bf16() {
  int code = cpu_bf16_usable() ? 2 : 0;
  const Tensor x = random_tensor({4, 4}, DType::bf16, 1);
  try {
    gemm({.a = x, .b = x, .c = Tensor::zeros({4, 4}, DType::bf16, kCpu), .m = 4, .n = 4, .k = 4});
    code = 3;
  } catch (const DeviceError& e) {
    code = std::string(e.what()).find("bf16") == std::string::npos ? 4 : code;
    std::fprintf(stderr, "%s\n", e.what());
  }
  const Conv c = conv(1, 4, 4, 4, 3, 1);
  const Tensor image = random_tensor({1, 4, 4, 4}, DType::bf16, 1);
  try {
    conv_forward(c, {.x = image, .w = random_tensor({4, 3, 3, 4}, DType::bf16, 2), .bias = Tensor(),
                     .y = image});
    code = 5;
  } catch (const DeviceError&) {
  }
  code = product_error() > 1e-6 ? 6 : code;
  std::exit(code);
}

using OnednnDeathTest = testing::Test;

TEST(OnednnDeathTest, Bf16IsRefusedOnACpuWithoutIt) {
  // Asked without opening it: the child must set the variable before oneDNN looks.
  if (onednn_status().find("absent") != std::string::npos) {
    GTEST_SKIP() << "built without oneDNN";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
        refuses_bf16();
      },
      testing::ExitedWithCode(0), "bf16 on the CPU needs AVX512-BF16.*offers avx2");
}

TEST(OnednnDeathTest, WithoutThePluginPlainKernelsDoTheWork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("PENSTOCK_ONEDNN", "off", 1);
        refuses_bf16();
      },
      testing::ExitedWithCode(0), "has no oneDNN");
}

TEST(OnednnDeathTest, OpensNothingBeforeItsFirstUse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const bool closed = onednn_status().find("oneDNN 2") == std::string::npos &&
                            onednn_status().find("oneDNN 3") == std::string::npos;
        std::exit(closed ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace penstock::kernels
