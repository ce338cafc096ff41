// An op of one's own, outside of the framework: y = x^3 with its gradient, checked against the
// difference quotient.
#include <cmath>
#include <cstdio>
#include <vector>

#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/trace.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/reduce.h"

using namespace penstock;

namespace {

// Computes the result, and hands record() the formula of the gradient; the engine does the rest:
// accumulation, dtypes, what nobody wants.
Tensor cube(const Tensor& x) {
  const trace::Op op("cube");
  const Tensor y = ops::mul(ops::square(x.detached()), x.detached());
  return record("cube", y, {x}, [x = x.detached()](Backward& b) {
    b.set(0, ops::mul(b.dy(), ops::scale(ops::square(x), 3)));
  });
}

}  // namespace

int main() {
  const std::vector<double> values = {-1.5, -0.2, 0.0, 0.7, 2.0};
  const Tensor x = leaf(Tensor::from(values, {5}, kCpu), "x");
  backward(ops::sum(cube(x)));
  const std::vector<double> gradient = grad(x).values<double>();
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    constexpr double kStep = 1e-5;
    const double numeric = (std::pow(values[i] + kStep, 3) - std::pow(values[i] - kStep, 3)) / (2 * kStep);
    worst = std::fmax(worst, std::fabs(numeric - gradient[i]));
    std::printf("x = %5.2f: gradient %8.4f, difference quotient %8.4f\n", values[i], gradient[i], numeric);
  }
  return worst < 1e-8 ? 0 : 1;
}
