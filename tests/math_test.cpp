// framework/core/math.h against libm one precision higher.
//
// Each function of one float is checked on more than 2^22 points that cover every exponent of
// either sign, the subnormals, the specials and the neighbourhood of every switch inside the
// function, at every instruction-set level of this machine, which must agree bit for bit.
// PENSTOCK_MATH_EXHAUSTIVE=1 walks all 2^32 floats instead (minutes a function).
#include "framework/core/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/core/machine.h"

namespace penstock {
namespace {

// ---- the loops that kernels run: one instance for each instruction-set level -------------------

template <class F, class T, class... In>
__attribute__((noinline)) void loop_v1(F f, i64 n, T* y, const In*... x) {
  for (i64 i = 0; i < n; ++i) {
    y[i] = f(x[i]...);
  }
}
template <class F, class T, class... In>
__attribute__((target("arch=x86-64-v3"), noinline)) void loop_v3(F f, i64 n, T* y, const In*... x) {
  for (i64 i = 0; i < n; ++i) {
    y[i] = f(x[i]...);
  }
}
template <class F, class T, class... In>
__attribute__((target("arch=x86-64-v4,prefer-vector-width=512"), noinline)) void loop_v4(
    F f, i64 n, T* y, const In*... x) {
  for (i64 i = 0; i < n; ++i) {
    y[i] = f(x[i]...);
  }
}

template <class F, class T, class... In>
void loop(machine::Isa isa, i64 n, T* y, const In*... x) {
  switch (isa) {
    case machine::Isa::kV4: loop_v4(F{}, n, y, x...); return;
    case machine::Isa::kV3: loop_v3(F{}, n, y, x...); return;
    case machine::Isa::kBaseline: loop_v1(F{}, n, y, x...); return;
  }
}

std::vector<machine::Isa> levels() {
  std::vector<machine::Isa> result;
  for (const machine::Isa isa : {machine::Isa::kBaseline, machine::Isa::kV3, machine::Isa::kV4}) {
    if (isa <= machine::isa()) {
      result.push_back(isa);
    }
  }
  return result;
}

// ---- error in units of the last place ----------------------------------------------------------

template <class T>
using Wider = std::conditional_t<std::is_same_v<T, float>, double, long double>;

// |got - expected| in ulp of the binade of max(|expected|, magnitude). Infinity counts as the first
// value beyond the largest finite one; a wrong NaN or a wrong sign of zero as infinitely far.
template <class T>
double ulp_error(T got, Wider<T> expected, Wider<T> magnitude = 0) {
  using R = Wider<T>;
  using Limits = std::numeric_limits<T>;
  if (std::isnan(expected) || std::isnan(got)) {
    return std::isnan(expected) && std::isnan(got) ? 0 : HUGE_VAL;
  }
  if (got == 0 && expected == 0) {
    return std::signbit(got) == std::signbit(expected) ? 0 : HUGE_VAL;
  }
  const R limit = std::ldexp(R(1), Limits::max_exponent);
  const R e = std::abs(expected) < limit ? expected : std::copysign(limit, expected);
  const R g = std::isinf(got) ? std::copysign(limit, R(got)) : R(got);
  const R size = std::max(std::abs(e), std::min(std::abs(magnitude), limit));
  const int exponent = std::clamp(size == 0 ? Limits::min_exponent : std::ilogb(size),
                                  Limits::min_exponent - 1, Limits::max_exponent - 1);
  return double(std::abs(g - e) / std::ldexp(R(1), exponent + 1 - Limits::digits));
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
// Uniform in [-1, 1).
double uniform(std::uint64_t i) {
  return double(std::int64_t(mix(i))) / 9223372036854775808.0;
}

bool exhaustive() {
  return std::getenv("PENSTOCK_MATH_EXHAUSTIVE") != nullptr;
}

// ---- what the functions stand for, in any wider type -------------------------------------------

template <class R>
inline constexpr R kGeluScale = R(1.59576912160573071175978L);  // sqrt(8 / pi)

template <class R>
R true_sigmoid(R x) {
  const R e = std::exp(-std::abs(x));
  return (x < 0 ? e : R(1)) / (1 + e);
}
template <class R>
R true_density(R x) {
  return std::exp(R(-0.5) * x * x) * R(0.398942280401432677939946L);
}
template <class R>
R true_below(R x) {
  return R(0.5) * std::erfc(-x * R(0.707106781186547524400844L));
}
template <class R>
R true_gelu_argument(R x) {
  return kGeluScale<R> * (x + R(0.044715L) * x * x * x);
}
// Far out the products become 0 * inf; their limits are those of the bounded argument.
template <class R>
R bounded(R x, R bound) {
  return std::isnan(x) ? x : std::clamp(x, -bound, bound);
}
template <class R>
R gated(R x, R gate) {
  return std::isinf(x) && x < 0 ? R(-0.0) : x * gate;
}

// In whose ulp the error of x gate(z) and of its derivative gate + x slope density counts: the
// terms, grown by |z| in the tail, where the rounding of z shows; the gate may be subnormal.
template <class R>
R tail(R z) {
  return 1 + (z < 0 ? -z : R(0));
}
template <class R>
R gated_size(R x, R gate, R z) {
  return std::abs(bounded(x, R(1000))) * (gate * tail(z) + R(std::numeric_limits<float>::min()));
}
template <class R>
R gradient_size(R x, R gate, R slope, R density, R z) {
  const R small = R(std::numeric_limits<float>::min());
  return gate * tail(z) + std::abs(x * slope) * (density * tail(-std::abs(z)) + small);
}

// ---- the table of functions of one argument ----------------------------------------------------

struct UnaryCase {
  const char* name;
  double max_ulp;
  void (*apply)(machine::Isa, i64, float*, const float*);
  double (*truth)(double);
  double (*size)(double);  // at least this magnitude's ulp counts; 0 for the result's own
  double (*apply_double)(double);
  long double (*truth_double)(long double);
  long double (*size_double)(long double);
};

void PrintTo(const UnaryCase& c, std::ostream* os) {
  *os << c.name;
}

constexpr auto kOwnSize = [](auto x) { return decltype(x)(0); };

template <class F, class Truth, class Size = decltype(kOwnSize)>
UnaryCase unary(const char* name, double max_ulp, F f, Truth truth, Size size = kOwnSize) {
  return {.name = name,
          .max_ulp = max_ulp,
          .apply = [](machine::Isa isa, i64 n, float* y, const float* x) { loop<F>(isa, n, y, x); },
          .truth = truth,
          .size = size,
          .apply_double = f,
          .truth_double = truth,
          .size_double = size};
}

const std::vector<UnaryCase>& unary_cases() {
  static const std::vector<UnaryCase> cases = {
      unary(
          "exp", 2, [](auto x) { return math::exp(x); }, [](auto x) { return std::exp(x); }),
      unary(
          "expm1", 2, [](auto x) { return math::expm1(x); }, [](auto x) { return std::expm1(x); }),
      unary(
          "log", 2, [](auto x) { return math::log(x); }, [](auto x) { return std::log(x); }),
      unary(
          "log1p", 2, [](auto x) { return math::log1p(x); }, [](auto x) { return std::log1p(x); }),
      unary(
          "tanh", 2, [](auto x) { return math::tanh(x); }, [](auto x) { return std::tanh(x); }),
      unary(
          "sigmoid", 2, [](auto x) { return math::sigmoid(x); },
          [](auto x) { return true_sigmoid(x); }),
      unary(
          "erf", 2, [](auto x) { return math::erf(x); }, [](auto x) { return std::erf(x); }),
      unary(
          "sqrt", 0.5001, [](auto x) { return math::sqrt(x); },
          [](auto x) { return std::sqrt(x); }),
      unary(
          "rsqrt", 2, [](auto x) { return math::rsqrt(x); },
          [](auto x) { return 1 / std::sqrt(x); }),
      unary(
          "floor", 0, [](auto x) { return math::floor(x); }, [](auto x) { return std::floor(x); }),
      unary(
          "abs", 0, [](auto x) { return math::abs(x); }, [](auto x) { return std::abs(x); }),
      unary(
          "softplus", 2, [](auto x) { return math::softplus(x); },
          [](auto x) {
            return std::isnan(x) ? x
                                 : std::max(x, decltype(x)(0)) + std::log1p(std::exp(-std::abs(x)));
          }),
      unary(
          "silu", 4, [](auto x) { return math::silu(x); },
          [](auto x) { return gated(x, true_sigmoid(x)); },
          [](auto x) { return gated_size(x, true_sigmoid(x), decltype(x)(0)); }),
      unary(
          "silu_grad", 4, [](auto x) { return math::silu_grad(x); },
          [](auto x) {
            const auto b = bounded(x, decltype(x)(800));
            return true_sigmoid(b) + b * true_sigmoid(b) * true_sigmoid(-b);
          },
          [](auto x) {
            using R = decltype(x);
            const R b = bounded(x, R(800));
            const R s = true_sigmoid(b);
            return gradient_size(b, s, R(1), s * true_sigmoid(-b), R(0));
          }),
      unary(
          "gelu_tanh", 4, [](auto x) { return math::gelu_tanh(x); },
          [](auto x) { return gated(x, true_sigmoid(true_gelu_argument(x))); },
          [](auto x) {
            const auto z = true_gelu_argument(bounded(x, decltype(x)(40)));
            return gated_size(x, true_sigmoid(z), z);
          }),
      unary(
          "gelu_tanh_grad", 4, [](auto x) { return math::gelu_tanh_grad(x); },
          [](auto x) {
            using R = decltype(x);
            const R b = bounded(x, R(40));
            const R z = true_gelu_argument(b);
            const R slope = kGeluScale<R> * (1 + R(0.134145L) * b * b);
            return true_sigmoid(z) + b * slope * true_sigmoid(z) * true_sigmoid(-z);
          },
          [](auto x) {
            using R = decltype(x);
            const R b = bounded(x, R(40));
            const R z = true_gelu_argument(b);
            const R slope = kGeluScale<R> * (1 + R(0.134145L) * b * b);
            const R s = true_sigmoid(z);
            return gradient_size(b, s, slope, s * true_sigmoid(-z), z);
          }),
      unary(
          "gelu_erf", 5, [](auto x) { return math::gelu_erf(x); },
          [](auto x) { return gated(x, true_below(x)); },
          [](auto x) {
            const auto b = bounded(x, decltype(x)(40));
            return gated_size(x, true_below(b), b * std::abs(b) / 2);
          }),
      unary(
          "gelu_erf_grad", 4, [](auto x) { return math::gelu_erf_grad(x); },
          [](auto x) {
            const auto b = bounded(x, decltype(x)(40));
            return true_below(b) + b * true_density(b);
          },
          [](auto x) {
            using R = decltype(x);
            const R b = bounded(x, R(40));
            return gradient_size(b, true_below(b), R(1), true_density(b), b * std::abs(b) / 2);
          }),
  };
  return cases;
}

// ---- points ------------------------------------------------------------------------------------

constexpr i64 kBlock = 1 << 14;
constexpr i64 kSample = 1 << 22;

// 512 combinations of sign and exponent, 8192 equal pieces of the mantissa, a point in each.
float sample(i64 i) {
  return bits::to_float(std::uint32_t(i << 10) | std::uint32_t(mix(std::uint64_t(i)) & 1023u));
}

// The neighbourhood of every value at which a function changes its formula or leaves its range.
std::vector<float> critical_points() {
  std::vector<float> x;
  const auto add = [&](float center, int radius) {
    for (int step = -radius; step <= radius; ++step) {
      const float v = bits::to_float(bits::of_float(center) + std::uint32_t(step));
      x.push_back(v);
      x.push_back(-v);
    }
  };
  for (const float center : {0.0f,
                             0.5f,
                             0.55f,
                             2.0f / 3.0f,
                             0.70710678f,
                             0.9f,
                             1.0f,
                             4.0f / 3,
                             1.41421356f,
                             2.0f,
                             3.92f,
                             3.95f,
                             9.02f,
                             10.0f,
                             17.3286795f,
                             18.0f,
                             40.0f,
                             87.33654f,
                             88.72284f,
                             89.0f,
                             103.27893f,
                             103.97208f,
                             104.0f,
                             800.0f,
                             8388608.0f,
                             16777216.0f,
                             0x1p-126f,
                             0x1p-24f,
                             0x1p-25f,
                             0x1p+64f,
                             0x1.fffffep+127f,
                             std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()}) {
    add(center, 64);
  }
  // Between two pieces of the exponential's range reduction.
  for (int k = 1; k <= 310; ++k) {
    add(float(k * 0.34657359027997264), 8);
  }
  while (i64(x.size()) % kBlock != 0) {
    x.push_back(0.0f);
  }
  return x;
}

// ---- tests -------------------------------------------------------------------------------------

// Calls visit(x) for blocks of kBlock arguments.
template <class Visit>
i64 for_each_block(const Visit& visit) {
  const std::vector<float> critical = critical_points();
  std::vector<float> x(kBlock);
  const i64 points = exhaustive() ? i64(1) << 32 : kSample + i64(critical.size());
  for (i64 first = 0; first < points; first += kBlock) {
    for (i64 i = 0; i < kBlock; ++i) {
      const i64 index = first + i;
      x[size_t(i)] = exhaustive()      ? bits::to_float(std::uint32_t(index))
                     : index < kSample ? sample(index)
                                       : critical[size_t(index - kSample)];
    }
    visit(x);
  }
  return points;
}

// How many results differ in any bit; the first of them is a failure with its argument.
i64 differences(const char* name, machine::Isa isa, const std::vector<float>& x,
                const std::vector<float>& a, const std::vector<float>& b) {
  if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) {
    return 0;
  }
  i64 count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (bits::of_float(a[i]) != bits::of_float(b[i]) && count++ == 0) {
      ADD_FAILURE() << name << "(" << x[i] << ") is " << a[i] << " at the lowest level and " << b[i]
                    << " at " << machine::name_of(isa);
    }
  }
  return count;
}

class MathUnary : public testing::TestWithParam<UnaryCase> {};

TEST_P(MathUnary, FloatStaysWithinItsBoundAndHasTheSameBitsAtEveryInstructionSetLevel) {
  const UnaryCase& c = GetParam();
  const std::vector<machine::Isa> isas = levels();
  std::vector<float> y(kBlock);
  std::vector<float> other(kBlock);
  double worst = 0;
  float worst_x = 0;
  i64 different = 0;
  const i64 points = for_each_block([&](const std::vector<float>& x) {
    c.apply(isas[0], kBlock, y.data(), x.data());
    for (size_t level = 1; level < isas.size() && different == 0; ++level) {
      c.apply(isas[level], kBlock, other.data(), x.data());
      different += differences(c.name, isas[level], x, y, other);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = ulp_error(y[i], c.truth(double(x[i])), c.size(double(x[i])));
      if (error > worst) {
        worst = error;
        worst_x = x[i];
      }
    }
  });
  std::printf("%-15s float:  at most %.3f ulp, at %.9g (%lld points, %zu levels)\n", c.name, worst,
              double(worst_x), static_cast<long long>(points), isas.size());
  EXPECT_LE(worst, c.max_ulp) << "at " << worst_x;
}

TEST_P(MathUnary, DoubleStaysWithinItsBound) {
  const UnaryCase& c = GetParam();
  double worst = 0;
  double worst_x = 0;
  constexpr i64 kPoints = 1 << 17;
  for (i64 i = 0; i < kPoints; ++i) {
    // Half over all exponents, half where the functions bend.
    const std::uint64_t any = mix(std::uint64_t(i));
    const double x = i % 2 == 0 ? bits::to_double(any) : uniform(std::uint64_t(i)) * 40.0;
    const double error = ulp_error(c.apply_double(x), c.truth_double(static_cast<long double>(x)),
                                   c.size_double(static_cast<long double>(x)));
    if (error > worst) {
      worst = error;
      worst_x = x;
    }
  }
  std::printf("%-15s double: at most %.3f ulp, at %.17g\n", c.name, worst, worst_x);
  EXPECT_LE(worst, c.max_ulp) << "at " << worst_x;
}

INSTANTIATE_TEST_SUITE_P(All, MathUnary, testing::ValuesIn(unary_cases()),
                         [](const auto& test) { return std::string(test.param.name); });

struct Pow {
  float operator()(float x, float y) const { return math::pow(x, y); }
};

TEST(MathPow, StaysWithinTwoUlpAndHasTheSameBitsAtEveryInstructionSetLevel) {
  const std::vector<machine::Isa> isas = levels();
  constexpr float kExponents[] = {-3.0f, -2.0f, -1.0f, -0.5f, 0.25f, 1.0f / 3, 0.5f, 0.75f,
                                  1.0f,  1.5f,  2.0f,  2.2f,  3.0f,  4.0f,     7.0f, 10.0f};
  std::vector<float> y(kBlock);
  std::vector<float> z(kBlock);
  std::vector<float> other(kBlock);
  double worst = 0;
  float worst_x = 0;
  float worst_y = 0;
  i64 different = 0;
  std::uint64_t count = 0;
  const i64 points = for_each_block([&](const std::vector<float>& x) {
    for (size_t i = 0; i < x.size(); ++i, ++count) {
      // Exponents that spread the results over the whole range, the usual ones, and whole numbers.
      const double spread = 155.0 * uniform(count) / std::log2(std::abs(double(x[i])));
      const float whole = std::floor(float(40.0 * uniform(count)));
      y[i] = count % 4 == 0   ? kExponents[count / 4 % std::size(kExponents)]
             : count % 4 == 1 ? whole
                              : float(spread);
    }
    loop<Pow>(isas[0], kBlock, z.data(), x.data(), y.data());
    for (size_t level = 1; level < isas.size() && different == 0; ++level) {
      loop<Pow>(isas[level], kBlock, other.data(), x.data(), y.data());
      different += differences("pow", isas[level], x, z, other);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = ulp_error(z[i], std::pow(double(x[i]), double(y[i])));
      if (error > worst) {
        worst = error;
        worst_x = x[i];
        worst_y = y[i];
      }
    }
  });
  std::printf("%-15s float:  at most %.3f ulp, at (%.9g, %.9g) (%lld points, %zu levels)\n", "pow",
              worst, double(worst_x), double(worst_y), static_cast<long long>(points), isas.size());
  EXPECT_LE(worst, 2.0) << "at " << worst_x << ", " << worst_y;
}

TEST(MathPow, FollowsTheRulesOfCForSpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {
      0.0f,        1e-45f,      0x1p-126f, 0.5f,      0.99999994f, 1.0f,       1.0000001f,
      1.5f,        2.0f,        2.5f,      3.0f,      4.0f,        31.0f,      127.0f,
      149.0f,      150.0f,      200.0f,    1e10f,     8388607.0f,  8388607.5f, 8388609.0f,
      16777215.0f, 16777216.0f, 3e38f,     kInfinity, kNan};
  for (const float a : values) {
    for (const float b : values) {
      for (const float x : {a, -a}) {
        for (const float y : {b, -b}) {
          const float got = math::pow(x, y);
          EXPECT_LE(ulp_error(got, std::pow(double(x), double(y))), 0.51)
              << "pow(" << x << ", " << y << ") = " << got;
        }
      }
    }
  }
  EXPECT_EQ(math::pow(0.0f, 0.0f), 1.0f);
  EXPECT_EQ(math::pow(-2.0f, 3.0f), -8.0f);
  EXPECT_EQ(math::pow(3.0f, 5.0f), 243.0f);
  EXPECT_TRUE(std::isnan(math::pow(-8.0f, 1.0f / 3)));
  EXPECT_EQ(math::pow(0.0, 0.0), 1.0);
  EXPECT_EQ(math::pow(-2.0, 3.0), -8.0);
}

TEST(MathMinMax, TakeTheSmallerOrLargerAndLetNoNanDisappear) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(math::min(1.0f, 2.0f), 1.0f);
  EXPECT_EQ(math::min(2.0f, 1.0f), 1.0f);
  EXPECT_EQ(math::max(1.0, 2.0), 2.0);
  EXPECT_EQ(math::max(2.0, 1.0), 2.0);
  EXPECT_EQ(math::min(1.0f, -math::infinity<float>()), -math::infinity<float>());
  for (const float other : {0.0f, 1.0f, math::infinity<float>()}) {
    EXPECT_TRUE(std::isnan(math::min(nan, other)));
    EXPECT_TRUE(std::isnan(math::min(other, nan)));
    EXPECT_TRUE(std::isnan(math::max(nan, other)));
    EXPECT_TRUE(std::isnan(math::max(other, nan)));
  }
}

TEST(MathActivations, DerivativesAreThoseOfTheFunctions) {
  constexpr double kStep = 1e-5;
  const auto expect_slope = [](auto f, auto grad, double x) {
    const double slope = (f(x + kStep) - f(x - kStep)) / (2 * kStep);
    EXPECT_NEAR(grad(x), slope, 1e-9) << "at " << x;
  };
  for (double x = -8; x <= 8; x += 0.03125) {
    expect_slope([](double v) { return math::silu(v); },
                 [](double v) { return math::silu_grad(v); }, x);
    expect_slope([](double v) { return math::gelu_tanh(v); },
                 [](double v) { return math::gelu_tanh_grad(v); }, x);
    expect_slope([](double v) { return math::gelu_erf(v); },
                 [](double v) { return math::gelu_erf_grad(v); }, x);
    expect_slope([](double v) { return math::softplus(v); },
                 [](double v) { return math::sigmoid(v); }, x);
  }
}

TEST(MathActivations, ReachTheirLimitsAtTheInfinities) {
  const float inf = math::infinity<float>();
  for (const auto f :
       {math::silu<float>, math::gelu_tanh<float>, math::gelu_erf<float>, math::softplus<float>}) {
    EXPECT_EQ(f(inf), inf);
    EXPECT_EQ(f(-inf), 0.0f);
    EXPECT_TRUE(std::isnan(f(math::not_a_number<float>())));
  }
  for (const auto grad :
       {math::silu_grad<float>, math::gelu_tanh_grad<float>, math::gelu_erf_grad<float>}) {
    EXPECT_EQ(grad(inf), 1.0f);
    EXPECT_EQ(grad(-inf), 0.0f);
    EXPECT_TRUE(std::isnan(grad(math::not_a_number<float>())));
  }
}

}  // namespace
}  // namespace penstock
