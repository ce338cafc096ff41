#include "framework/measure/svg_scale.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::measure {
namespace {

// The smallest pleasant step that is at least `least`.
double pleasant_step(double least, Unit unit) {
  if (unit == Unit::kSeconds && least > 1) {
    for (const double step : {2., 5., 10., 15., 30., 60., 120., 300., 600., 900., 1800., 3600.,
                              7200., 14400., 21600., 43200., 86400., 172800., 604800.}) {
      if (step >= least) {
        return step;
      }
    }
  }
  if (unit == Unit::kBytes) {
    return std::exp2(std::ceil(std::log2(least) - 1e-9));
  }
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double digit : {1., 2., 5.}) {
    if (digit * power >= least * (1 - 1e-9)) {
      return digit * power;
    }
  }
  return 10 * power;
}

}  // namespace

void Extent::add(double value, bool log) {
  if (!std::isfinite(value) || (log && value <= 0)) {
    return;
  }
  low = any ? std::min(low, value) : value;
  high = any ? std::max(high, value) : value;
  any = true;
}

Scale::Scale(const Axis& axis, Extent e, bool from_zero, int ticks) : log_(axis.log) {
  if (!e.any) {
    e = {.low = log_ ? 1. : 0., .high = log_ ? 10. : 1., .any = true};
  }
  if (!log_ && from_zero && e.low >= 0 && e.high - e.low > 0.1 * e.high) {
    e.low = 0;
  }
  low_ = axis.low.value_or(e.low);
  high_ = axis.high.value_or(e.high);
  if (log_) {
    low_ = low_ > 0 ? low_ : high_ > 0 ? high_ / 10 : 1;
    // Room to widen without overflow.
    low_ = std::clamp(low_, 1e-290, 1e290);
    high_ = std::clamp(high_, low_, 1e290);
    if (high_ / low_ < 1.2) {
      low_ /= axis.powers_of_two ? 2 : 1.5;
      high_ *= axis.powers_of_two ? 2 : 1.5;
    }
    const double base = axis.powers_of_two ? 2 : 10;
    // Logarithms are subtracted: the quotient may overflow.
    const double span = (std::log(high_) - std::log(low_)) / std::log(base);
    const int stride = std::max(1, int(std::ceil(span / ticks - 1e-9)));
    const bool between = base == 10 && span <= 2.5;
    const double first = std::floor(std::log(low_) / std::log(base));
    for (double p = first; p <= first + span + 2; p += stride) {
      for (const double digit : {1., 2., 5.}) {
        const double tick = digit * std::pow(base, p);
        if ((digit == 1 || between) && tick >= low_ * (1 - 1e-9) && tick <= high_ * (1 + 1e-9)) {
          ticks_.push_back(tick);
        }
      }
    }
    return;
  }
  if (!(high_ > low_)) {
    const double around = low_ == 0 ? 1 : std::fabs(low_) * 0.1;
    low_ -= from_zero && low_ >= 0 && low_ <= around ? low_ : around;
    high_ += around;
  }
  // Values near the largest double would overflow the span.
  low_ = std::clamp(low_, -1e300, 1e300);
  high_ = std::clamp(high_, -1e300, 1e300);
  const double step = pleasant_step((high_ - low_) / ticks, axis.unit);
  if (from_zero && !axis.high) {
    high_ = step * std::ceil(high_ / step - 1e-9);
  }
  if (from_zero && !axis.low) {
    low_ = step * std::floor(low_ / step + 1e-9);
  }
  for (double k = std::ceil(low_ / step - 1e-9); k * step <= high_ + 1e-9 * step; ++k) {
    ticks_.push_back(k * step);
    if (ticks_.size() > 100) {
      break;
    }
  }
}

double Scale::place(double value) const {
  return log_ ? (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_))
              : (value - low_) / (high_ - low_);
}

bool Scale::shows(double value) const {
  if (!std::isfinite(value) || (log_ && value <= 0)) {
    return false;
  }
  const double at = place(value);
  return at >= -1e-6 && at <= 1 + 1e-6;
}

}  // namespace penstock::measure
