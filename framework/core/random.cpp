#include "framework/core/random.h"

#include <cmath>

namespace penstock::random {

float Generator::normal() {
  // 1 - u lies in (0, 1], so the logarithm is finite.
  const double u = 1.0 - double(uniform());
  const double v = double(uniform());
  return float(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
}

}  // namespace penstock::random
