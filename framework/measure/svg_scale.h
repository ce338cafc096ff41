// An axis as a map from values to [0, 1], and its ticks. Only svg.cpp needs it.
#pragma once

#include <vector>

#include "framework/measure/svg.h"

namespace penstock::measure {

// Smallest and largest finite value.
struct Extent {
  double low = 0;
  double high = 0;
  bool any = false;
  // Values that a logarithmic axis cannot show do not count.
  void add(double value, bool log);
};

class Scale {
 public:
  Scale() = default;
  // `from_zero`: a linear axis of values that are all positive begins at 0, unless they vary by
  // less than a tenth. About `ticks` ticks.
  Scale(const Axis& axis, Extent extent, bool from_zero, int ticks);

  double place(double value) const;
  // Finite and on the axis.
  bool shows(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  bool log_ = false;
  double low_ = 0;
  double high_ = 1;
  std::vector<double> ticks_;
};

}  // namespace penstock::measure
