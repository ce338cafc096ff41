#include "framework/optim/schedule.h"

#include <algorithm>
#include <cmath>

namespace penstock::optim {

double learning_rate(const Schedule& s, i64 position, i64 batch) {
  if (position + batch < s.warmup) {
    return s.base * double(position + batch) / double(s.warmup);
  }
  const double span = double(std::max<i64>(1, s.total - s.warmup));
  const double done = std::clamp(double(position - s.warmup) / span, 0.0, 1.0);
  switch (s.kind) {
    case Schedule::Kind::kConstant: return s.base;
    case Schedule::Kind::kCosine:
      return s.final + 0.5 * (s.base - s.final) * (1 + std::cos(3.14159265358979323846 * done));
    case Schedule::Kind::kLinear: return s.base + (s.final - s.base) * done;
    case Schedule::Kind::kStep: {
      double rate = s.base;
      for (const i64 m : s.milestones) {
        rate *= position >= m ? s.factor : 1.0;
      }
      return rate;
    }
    case Schedule::Kind::kWsd: {
      // A fall that would begin within the warm-up begins behind it, and is steeper.
      const i64 begin = std::max(s.warmup, s.total - s.decay);
      if (position <= begin || s.decay <= 0) {
        return s.base;
      }
      const double fallen = begin >= s.total
                                ? 1.0
                                : std::min(1.0, double(position - begin) / double(s.total - begin));
      return s.base + (s.final - s.base) * fallen;
    }
  }
  return s.base;
}

}  // namespace penstock::optim
