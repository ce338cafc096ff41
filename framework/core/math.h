// Elementary functions for kernels: one source for host and device, float and double.
//
// float: at most 2 ulp over the whole range, with subnormals, infinities and NaN as IEEE asks.
// Branch-free (selects only, no calls, no tables), so a plain loop over them vectorises, and free
// of any reliance on fused multiply-add, so every instruction-set level gives the same bits when
// compiled with -ffp-contract=off. Vector code also needs -O3 -fno-math-errno -fno-trapping-math.
// On a GPU the compiler may contract; the bound of 2 ulp holds there too.
// double: the compiler's builtins (at most 2 ulp); it serves the f64 reference path.
//
// All coefficients come from tools/fit_math.py, which also states their error; `--check` compares.
#pragma once

#include <concepts>
#include <cstdint>

#include "framework/core/target.h"

namespace penstock::math {

template <std::floating_point T>
PENSTOCK_HD constexpr T infinity() {
  return T(__builtin_inf());
}
template <std::floating_point T>
PENSTOCK_HD constexpr T not_a_number() {
  return T(__builtin_nan(""));
}

// ---- exact operations --------------------------------------------------------------------------

PENSTOCK_HD float abs(float x) {
  return __builtin_fabsf(x);
}
PENSTOCK_HD double abs(double x) {
  return __builtin_fabs(x);
}

// The smaller or larger of two; NaN if either is NaN, so that a bad value is never hidden. Of two
// equal values (zeros of either sign) the second.
template <std::floating_point T>
PENSTOCK_HD T min(T a, T b) {
  return ((a < b) | (a != a)) ? a : b;
}
template <std::floating_point T>
PENSTOCK_HD T max(T a, T b) {
  return ((a > b) | (a != a)) ? a : b;
}

// Magnitude of the first argument, sign of the second.
PENSTOCK_HD float copysign(float magnitude, float sign) {
  return bits::to_float((bits::of_float(magnitude) & 0x7fffffffu) |
                        (bits::of_float(sign) & 0x80000000u));
}
PENSTOCK_HD double copysign(double magnitude, double sign) {
  return __builtin_copysign(magnitude, sign);
}

// The largest integer not above x; -0 stays -0.
PENSTOCK_HD float floor(float x) {
  constexpr float kUnit = 8388608.0f;  // 2^23: adding it rounds the fraction off
  const float a = abs(x);
  const float nearest = copysign((a + kUnit) - kUnit, x);
  const float below = nearest - (nearest > x ? 1.0f : 0.0f);
  return a < kUnit ? copysign(below, x) : x;
}
PENSTOCK_HD double floor(double x) {
  return __builtin_floor(x);
}

PENSTOCK_HD float sqrt(float x) {
  return __builtin_sqrtf(x);
}
PENSTOCK_HD double sqrt(double x) {
  return __builtin_sqrt(x);
}
PENSTOCK_HD float rsqrt(float x) {
  return 1.0f / sqrt(x);
}
PENSTOCK_HD double rsqrt(double x) {
  return 1.0 / sqrt(x);
}

// ---- building blocks ---------------------------------------------------------------------------

namespace detail {

// c0 + c1 t + c2 t^2 + ...
template <class T>
PENSTOCK_HD T polynomial(T /*t*/, T c) {
  return c;
}
template <class T, class... C>
PENSTOCK_HD T polynomial(T t, T c, C... rest) {
  return c + t * polynomial(t, rest...);
}

inline constexpr float kLog2E = 1.442695f;
// ln 2 in two parts: the upper one has 15 significant bits, so k * kLn2High is exact.
inline constexpr float kLn2High = 0.69314575f;
inline constexpr float kLn2Low = 1.4286068e-06f;
// 1.5 * 2^23: x + kRound - kRound rounds to an integer, which stands in the low bits of the sum.
inline constexpr float kRound = 12582912.0f;
inline constexpr std::uint32_t kRoundBits = 0x4b400000u;

// 2^k for -127 < k < 128.
PENSTOCK_HD float power_of_two(std::int32_t k) {
  return bits::to_float(std::uint32_t(k + 127) << 23);
}
// y 2^k for -252 < k < 254, rounded once: half of k at a time reaches subnormals and infinity.
PENSTOCK_HD float scale(float y, std::int32_t k) {
  const std::int32_t half = k >> 1;
  return y * power_of_two(half) * power_of_two(k - half);
}

// e^x = y 2^k with y in [0.7, 1.42]; |x| < 170.
struct Exponential {
  float y;
  std::int32_t k;
};
PENSTOCK_HD Exponential split_exp(float x) {
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  const float p = polynomial(r, 0.49999994f, 0.16666521f, 0.041668274f, 0.008368683f, 0.001382005f);
  return {1.0f + (r + r * r * p), std::int32_t(bits::of_float(shifted) - kRoundBits)};
}

// e^x where the result is a normal number: -87 < x < 88.
PENSTOCK_HD float exp_normal(float x) {
  const Exponential e = split_exp(x);
  return e.y * power_of_two(e.k);
}

// x = m 2^k with m in [pivot, 2 pivot), for positive normal x; m - 1 is exact.
struct Binary {
  float m;
  std::int32_t k;
};
PENSTOCK_HD Binary split_binary(float x, std::uint32_t pivot) {
  const std::uint32_t u = bits::of_float(x) - pivot;
  return {bits::to_float((u & 0x007fffffu) + pivot), std::int32_t(u) >> 23};
}
inline constexpr std::uint32_t kTwoThirds = 0x3f2aaaabu;
inline constexpr std::uint32_t kHalfSqrt2 = 0x3f3504f3u;

// log((1 + f) 2^k) for f in [-1/3, 1/3].
PENSTOCK_HD float log_of(float f, float k) {
  const float p = polynomial(f, 0.33333215f, -0.24999805f, 0.2001044f, -0.16680196f, 0.14005478f,
                             -0.12187882f, 0.13985816f, -0.12877508f);
  const float rest = f * f * (f * p - 0.5f) + k * kLn2Low;
  return (f + rest) + k * kLn2High;
}

// exp(x^2 / 2) P(X < -x) for a standard normal X and 1 <= x < 14.5.
PENSTOCK_HD float mills(float x) {
  const float t = 1.0f / (x + 3.125f);
  return t * polynomial(t, 0.39889768f, 1.2499629f, 3.395694f, 10.165382f, -1.8817534f, 126.11331f,
                        -416.19003f, 367.50534f);
}

}  // namespace detail

// ---- exponentials and logarithms ---------------------------------------------------------------

PENSTOCK_HD float exp(float x) {
  // Beyond these bounds the result is 0 or infinity anyway; NaN passes both.
  const float low = x < -104.0f ? -104.0f : x;
  const float bounded = low > 89.0f ? 89.0f : low;
  const detail::Exponential e = detail::split_exp(bounded);
  return detail::scale(e.y, e.k);
}
PENSTOCK_HD double exp(double x) {
  return __builtin_exp(x);
}

namespace detail {

// exp for x <= 0.
PENSTOCK_HD float exp_negative(float x) {
  const Exponential e = split_exp(x < -104.0f ? -104.0f : x);
  return scale(e.y, e.k);
}
PENSTOCK_HD double exp_negative(double x) {
  return __builtin_exp(x);
}

}  // namespace detail

// e^x - 1, accurate near 0.
PENSTOCK_HD float expm1(float x) {
  const float low = x < -18.0f ? -18.0f : x;
  const float bounded = low > 89.0f ? 89.0f : low;
  // n steps at 3/4 instead of 1/2, so |x| < 3/4 ln 2 is one piece: nearer to 0 the sum below would
  // cancel.
  const float shifted = (bounded * detail::kLog2E - copysign(0.25f, x)) + detail::kRound;
  const float n = shifted - detail::kRound;
  const std::int32_t k = std::int32_t(bits::of_float(shifted) - detail::kRoundBits);
  const float r = (bounded - n * detail::kLn2High) - n * detail::kLn2Low;
  const float p = r + r * r *
                          detail::polynomial(r, 0.50000006f, 0.16666669f, 0.041665018f,
                                             0.008333057f, 0.0014008188f, 0.00019993483f);
  // e^x - 1 = 2^k (p + 1 - 2^-k); 2^-k in two factors because k reaches 128.
  const float one = 1.0f - 0.5f * detail::power_of_two(1 - k);
  return copysign(detail::scale(p + one, k), x);
}
PENSTOCK_HD double expm1(double x) {
  return __builtin_expm1(x);
}

// Natural logarithm; log(0) = -inf, NaN below 0.
PENSTOCK_HD float log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const detail::Binary b =
      detail::split_binary(subnormal ? x * 33554432.0f : x, detail::kTwoThirds);
  const float finite = detail::log_of(b.m - 1.0f, float(b.k) - (subnormal ? 25.0f : 0.0f));
  const float outside = x == 0.0f ? -infinity<float>() : not_a_number<float>();
  const float y = x > 0.0f ? finite : outside;
  return x < infinity<float>() ? y : x;
}
PENSTOCK_HD double log(double x) {
  return __builtin_log(x);
}

// log(1 + x), accurate near 0; log1p(-1) = -inf, NaN below -1.
PENSTOCK_HD float log1p(float x) {
  const float u = 1.0f + x;
  // What the sum lost, exactly.
  const float lost = x >= 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
  const detail::Binary b = detail::split_binary(u, detail::kTwoThirds);
  // 2^-k in two factors because k reaches 128.
  const float f = (b.m - 1.0f) + 0.5f * lost * detail::power_of_two(1 - b.k);
  const float finite = copysign(detail::log_of(f, float(b.k)), x);
  const float outside = x == -1.0f ? -infinity<float>() : not_a_number<float>();
  const float y = x > -1.0f ? finite : outside;
  return x < infinity<float>() ? y : x;
}
PENSTOCK_HD double log1p(double x) {
  return __builtin_log1p(x);
}

// x^y by the rules of C: pow(x, 0) = pow(1, y) = 1; a negative base takes integral exponents only
// and gives NaN otherwise. Goes through double, which makes exact powers exact.
PENSTOCK_HD float pow(float x, float y) {
  const float a = abs(x);
  const float b = abs(y);
  const bool subnormal = a < 1.17549435e-38f;
  const detail::Binary split =
      detail::split_binary(subnormal ? a * 33554432.0f : a, detail::kHalfSqrt2);
  const double m = double(split.m);
  const double s = (m - 1.0) / (m + 1.0);
  const double fraction =
      s * detail::polynomial(s * s, 2.885390081790086, 0.9617966733418984, 0.5770835849378999,
                             0.411672720565661, 0.3407300814171561);
  // 0 and infinity enter as logarithms of -inf and inf.
  const float at_end = a < infinity<float>() ? 0.0f : infinity<float>();
  const float special = a > 0.0f ? at_end : -infinity<float>();
  const float k = (float(split.k) - (subnormal ? 25.0f : 0.0f)) + special;
  const double exponent = double(y) * (fraction + double(k));

  const double low = exponent < -200.0 ? -200.0 : exponent;
  const double bounded = low > 200.0 ? 200.0 : low;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = bounded + kRound;
  const double r = bounded - (shifted - kRound);
  const double v = 1.0 + r * detail::polynomial(r, 0.6931471805481949, 0.24022650698114806,
                                                0.055504109353466544, 0.0096181286156924,
                                                0.0013333454780965236, 0.00015403825533837932,
                                                1.530917775134857e-05, 1.317895470953627e-06);
  const double power = bits::to_double((bits::of_double(shifted) + 1023u) << 52);
  const float magnitude = float(v * power);

  constexpr float kUnit = 8388608.0f;  // 2^23: from here on every float is an integer
  const std::uint32_t low_bits = bits::of_float(b < kUnit ? b + kUnit : b);
  const bool integral = (b >= kUnit) | ((b + kUnit) - kUnit == b);
  const bool odd = integral & (b < 2.0f * kUnit) & ((low_bits & 1u) != 0);
  const float sign = odd ? x : 1.0f;
  const bool no_root = (x < 0.0f) & (a < infinity<float>()) & !integral;
  const float real = no_root ? not_a_number<float>() : copysign(magnitude, sign);
  const float from_y = y == y ? real : y;
  const float any = x == x ? from_y : x;
  const bool one = (y == 0.0f) | (x == 1.0f) | ((x == -1.0f) & (b == infinity<float>()));
  return one ? 1.0f : any;
}
PENSTOCK_HD double pow(double x, double y) {
  return __builtin_pow(x, y);
}

// ---- sigmoidal functions -----------------------------------------------------------------------

PENSTOCK_HD float tanh(float x) {
  const float a = abs(x);
  const float t = a * a;
  const float near = a + a * t *
                             detail::polynomial(t, -0.3333332f, 0.13332634f, -0.0538564f,
                                                0.021086171f, -0.006292428f);
  // From 9.02 on the result rounds to 1.
  const float bounded = a > 10.0f ? 10.0f : a;
  const float far = 1.0f - 2.0f / (detail::exp_normal(2.0f * bounded) + 1.0f);
  return copysign(a < 0.55f ? near : far, x);
}
PENSTOCK_HD double tanh(double x) {
  const double a = abs(x);
  const double t = a * a;
  const double near =
      a + a * t *
              detail::polynomial(t, -0.333333333333333, 0.13333333333326577, -0.05396825396373774,
                                 0.021869488385273063, -0.008863232592879538, 0.0035920919519353074,
                                 -0.001455542381393326, 0.0005884427126456411,
                                 -0.00023337733929063937, 8.331073384792294e-05,
                                 -1.9491340394426615e-05);
  const double far = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
  return copysign(a < 0.55 ? near : far, x);
}

namespace detail {

// sigmoid(-|x|) and sigmoid(|x|), each accurate to its last bits.
template <class T>
struct Logistic {
  T small;
  T large;
};
template <class T>
PENSTOCK_HD Logistic<T> logistic(T x) {
  const T e = exp_negative(-abs(x));
  // e - e q rather than q itself: its error does not double where q falls just below a power of
  // two.
  const T q = e / (T(1) + e);
  return {e - e * q, T(1) - q};
}

}  // namespace detail

// 1 / (1 + e^-x); tiny results keep their accuracy: sigmoid(-100) is e^-100, not 0.
template <std::floating_point T>
PENSTOCK_HD T sigmoid(T x) {
  const detail::Logistic<T> g = detail::logistic(x);
  return x < T(0) ? g.small : g.large;
}

PENSTOCK_HD float erf(float x) {
  const float a = abs(x);
  const float near = a + a * detail::polynomial(a * a, 0.12837917f, -0.37612554f, 0.112823576f,
                                                -0.026785064f, 0.0050196024f, -0.0006124786f);
  // From 3.92 on the result rounds to 1.
  const float bounded = a > 3.95f ? 3.95f : a;
  const float far = 1.0f - detail::exp_normal(detail::polynomial(
                               bounded, -0.00016645322f, -1.1277972f, -0.636976f, -0.10411385f,
                               0.022315362f, -0.0030655516f, 0.00019822925f));
  return copysign(a < 0.9f ? near : far, x);
}
PENSTOCK_HD double erf(double x) {
  return __builtin_erf(x);
}

// ---- activations and their derivatives ---------------------------------------------------------
//
// Stable for every x: no overflow, no cancellation in the tails, limits at the infinities
// (silu(-inf) is -0, not NaN), NaN in NaN out. Errors are at most 5 ulp of the largest term of the
// formula (a derivative crosses 0), times 1 + |z| in a tail e^-z, since z itself is rounded.

namespace detail {

// Bounds beyond which a product's other factor is 0: they keep 0 * inf away. NaN passes.
template <class T>
PENSTOCK_HD T at_least(T x, T low) {
  return x < low ? low : x;
}
template <class T>
PENSTOCK_HD T within(T x, T bound) {
  return at_least(x > bound ? bound : x, -bound);
}

// y, but x itself where x is NaN: several NaN operands would leave the sign of y to the compiler.
template <class T>
PENSTOCK_HD T unless_nan(T x, T y) {
  return x == x ? y : x;
}

// 2 sqrt(2 / pi) (x + 0.044715 x^3): gelu_tanh(x) = x sigmoid(gelu_argument(x)).
template <class T>
PENSTOCK_HD T gelu_argument(T x) {
  return x * (T(1.5957691216057308) + T(0.07135481627260025) * (x * x));
}

// log(1 + e) for 0 <= e <= 1.
PENSTOCK_HD float log1p_unit(float e) {
  const float u = 1.0f + e;
  const float lost = e - (u - 1.0f);
  const bool upper = u >= 1.3333334f;
  const float f = upper ? (0.5f * u - 1.0f) + 0.5f * lost : e;
  return log_of(f, upper ? 1.0f : 0.0f);
}
PENSTOCK_HD double log1p_unit(double e) {
  return __builtin_log1p(e);
}

// Beyond this |x| the normal tail exp(-x^2 / 2) is 0.
template <class T>
inline constexpr T kNormalReach = T(sizeof(T) == sizeof(float) ? 14.5 : 40.0);

// P(X < x) for a standard normal X and |x| <= kNormalReach, given e = exp(-x^2 / 2).
PENSTOCK_HD float normal_below(float x, float e) {
  const float near = 0.5f + x * polynomial(x * x, 0.39894217f, -0.06648836f, 0.009962854f,
                                           -0.001163623f, 9.171021e-05f);
  const float tail = e * mills(abs(x));
  const float far = x < 0.0f ? tail : 1.0f - tail;
  return abs(x) < 1.0f ? near : far;
}
PENSTOCK_HD double normal_below(double x, double /*e*/) {
  return 0.5 * __builtin_erfc(-0.7071067811865476 * x);
}

}  // namespace detail

// log(1 + e^x); its derivative is sigmoid.
template <std::floating_point T>
PENSTOCK_HD T softplus(T x) {
  return (x > T(0) ? x : T(0)) + detail::log1p_unit(detail::exp_negative(-abs(x)));
}

// x sigmoid(x).
template <std::floating_point T>
PENSTOCK_HD T silu(T x) {
  return detail::unless_nan(x, detail::at_least(x, T(-800)) * sigmoid(x));
}
// s + x s (1 - s) with s = sigmoid(x).
template <std::floating_point T>
PENSTOCK_HD T silu_grad(T x) {
  const T bounded = detail::within(x, T(800));
  const detail::Logistic<T> g = detail::logistic(bounded);
  const T s = x < T(0) ? g.small : g.large;
  return detail::unless_nan(x, s + bounded * (g.small * g.large));
}

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, the approximation that GPT-2 uses.
template <std::floating_point T>
PENSTOCK_HD T gelu_tanh(T x) {
  const T bounded = detail::at_least(x, T(-40));
  return detail::unless_nan(x, bounded * sigmoid(detail::gelu_argument(bounded)));
}
// s + x s (1 - s) z'(x) with s = sigmoid(z), z = gelu_argument(x).
template <std::floating_point T>
PENSTOCK_HD T gelu_tanh_grad(T x) {
  const T bounded = detail::within(x, T(40));
  const detail::Logistic<T> g = detail::logistic(detail::gelu_argument(bounded));
  const T s = x < T(0) ? g.small : g.large;
  const T slope = T(1.5957691216057308) + T(0.21406444881780073) * (bounded * bounded);
  return detail::unless_nan(x, s + bounded * slope * (g.small * g.large));
}

// x P(X < x) for a standard normal X: the exact GELU.
template <std::floating_point T>
PENSTOCK_HD T gelu_erf(T x) {
  const T bounded = detail::within(x, detail::kNormalReach<T>);
  const T e = detail::exp_negative(T(-0.5) * (bounded * bounded));
  const T below = detail::normal_below(bounded, e);
  return detail::unless_nan(x, (x > T(0) ? x : bounded) * below);
}
// P(X < x) + x density(x).
template <std::floating_point T>
PENSTOCK_HD T gelu_erf_grad(T x) {
  const T bounded = detail::within(x, detail::kNormalReach<T>);
  const T e = detail::exp_negative(T(-0.5) * (bounded * bounded));
  const T density = e * T(0.3989422804014327);
  return detail::unless_nan(x, detail::normal_below(bounded, e) + bounded * density);
}

}  // namespace penstock::math
