// How long framework/core/math.h takes an element: each function in a loop as kernels run it, at
// each instruction-set level of this machine, on one core, next to the C library's scalar function.
//
//   math_bench [repeats]     a table; the last line is the same as JSON
//
// A level whose figure does not fall with its vector width did not vectorise. To see why, compile
// this file with -fopt-info-vec-missed, or look at a loop_v4 in `objdump -dC`: its main loop holds
// packed instructions on zmm registers, one backward jump and no call.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "framework/core/machine.h"
#include "framework/core/math.h"
#include "framework/core/random.h"

namespace penstock {
namespace {

constexpr i64 kElements = 4096;  // 16 KiB in and out: arithmetic, not memory, is measured

template <class F>
__attribute__((noinline)) void loop_v1(F f, const float* x, float* y) {
  for (i64 i = 0; i < kElements; ++i) {
    y[i] = f(x[i]);
  }
}
template <class F>
__attribute__((target("arch=x86-64-v3"), noinline)) void loop_v3(F f, const float* x, float* y) {
  for (i64 i = 0; i < kElements; ++i) {
    y[i] = f(x[i]);
  }
}
template <class F>
__attribute__((target("arch=x86-64-v4,prefer-vector-width=512"), noinline)) void loop_v4(
    F f, const float* x, float* y) {
  for (i64 i = 0; i < kElements; ++i) {
    y[i] = f(x[i]);
  }
}

struct Case {
  const char* name;
  float low;
  float high;
  void (*v1)(const float*, float*);
  void (*v3)(const float*, float*);
  void (*v4)(const float*, float*);
  float (*libm)(float);  // none for what the C library lacks
};

template <class F>
Case make_case(const char* name, float low, float high, F /*f*/, float (*libm)(float) = nullptr) {
  return {.name = name,
          .low = low,
          .high = high,
          .v1 = [](const float* x, float* y) { loop_v1(F{}, x, y); },
          .v3 = [](const float* x, float* y) { loop_v3(F{}, x, y); },
          .v4 = [](const float* x, float* y) { loop_v4(F{}, x, y); },
          .libm = libm};
}

// Nanoseconds an element: the fastest of several timed passes, each long enough for the clock.
template <class Pass>
double measure(int repeats, const Pass& pass) {
  using Clock = std::chrono::steady_clock;
  double best = HUGE_VAL;
  for (int r = 0; r < repeats; ++r) {
    constexpr int kPasses = 50;
    const auto start = Clock::now();
    for (int k = 0; k < kPasses; ++k) {
      pass();
    }
    const std::chrono::duration<double, std::nano> elapsed = Clock::now() - start;
    best = std::min(best, elapsed.count() / (double(kPasses) * double(kElements)));
  }
  return best;
}

std::vector<Case> cases() {
  return {
      make_case(
          "exp", -80, 80, [](float x) { return math::exp(x); }, expf),
      make_case(
          "expm1", -10, 10, [](float x) { return math::expm1(x); }, expm1f),
      make_case(
          "log", 1e-6f, 1e6f, [](float x) { return math::log(x); }, logf),
      make_case(
          "log1p", -0.9f, 10, [](float x) { return math::log1p(x); }, log1pf),
      make_case(
          "tanh", -5, 5, [](float x) { return math::tanh(x); }, tanhf),
      make_case("sigmoid", -10, 10, [](float x) { return math::sigmoid(x); }),
      make_case(
          "erf", -4, 4, [](float x) { return math::erf(x); }, erff),
      make_case(
          "sqrt", 0, 100, [](float x) { return math::sqrt(x); }, sqrtf),
      make_case("rsqrt", 0, 100, [](float x) { return math::rsqrt(x); }),
      make_case(
          "floor", -1e4f, 1e4f, [](float x) { return math::floor(x); }, floorf),
      make_case(
          "pow 2.2", 0, 10, [](float x) { return math::pow(x, 2.2f); },
          [](float x) { return powf(x, 2.2f); }),
      make_case("softplus", -10, 10, [](float x) { return math::softplus(x); }),
      make_case("silu", -10, 10, [](float x) { return math::silu(x); }),
      make_case("silu_grad", -10, 10, [](float x) { return math::silu_grad(x); }),
      make_case("gelu_tanh", -5, 5, [](float x) { return math::gelu_tanh(x); }),
      make_case("gelu_tanh_grad", -5, 5, [](float x) { return math::gelu_tanh_grad(x); }),
      make_case("gelu_erf", -5, 5, [](float x) { return math::gelu_erf(x); }),
      make_case("gelu_erf_grad", -5, 5, [](float x) { return math::gelu_erf_grad(x); }),
  };
}

int run(int repeats) {
  const machine::Isa isa = machine::isa();
  std::printf("%s, level %s; ns an element on one core, fastest of %d\n",
              machine::cpu_name().c_str(), machine::name_of(isa), repeats);
  std::printf("%-15s %9s %9s %9s %9s\n", "function", "baseline", "v3", "v4", "libm");
  std::string json;
  for (const Case& c : cases()) {
    random::Generator numbers(1, random::Stream::kSynthetic, 0, 0);
    std::vector<float> x(kElements);
    std::vector<float> y(kElements);
    for (float& v : x) {
      v = numbers.uniform(c.low, c.high);
    }
    std::printf("%-15s", c.name);
    json += json.empty() ? "{" : ",";
    json += '"' + std::string(c.name) + "\":{";
    const auto report = [&](const char* name, bool possible, const auto& pass) {
      if (!possible) {
        std::printf(" %9s", "-");
        return;
      }
      const double nanoseconds = measure(repeats, pass);
      std::printf(" %9.3f", nanoseconds);
      char text[64];
      std::snprintf(text, sizeof(text), "%s\"%s\":%.4f", json.back() == '{' ? "" : ",", name,
                    nanoseconds);
      json += text;
    };
    report("baseline", true, [&] { c.v1(x.data(), y.data()); });
    report("v3", isa >= machine::Isa::kV3, [&] { c.v3(x.data(), y.data()); });
    report("v4", isa >= machine::Isa::kV4, [&] { c.v4(x.data(), y.data()); });
    report("libm", c.libm != nullptr, [&] {
      for (size_t i = 0; i < size_t(kElements); ++i) {
        y[i] = c.libm(x[i]);
      }
    });
    std::printf("\n");
    json += '}';
  }
  std::printf("{\"unit\":\"ns/element\",\"isa\":\"%s\",\"functions\":%s}}\n", machine::name_of(isa),
              json.c_str());
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 20;
  if (argc > 2 || repeats < 1) {
    std::fprintf(stderr, "usage: math_bench [repeats >= 1]\n");
    return 2;
  }
  return penstock::run(repeats);
}
