#include "framework/tuner/statistics.h"

#include <algorithm>
#include <cmath>

namespace penstock::tuner {

double median(std::vector<double> values) {
  check(!values.empty(), "tuner: the median of no values was asked for");
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) {
    return *middle;
  }
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

double median_deviation(const std::vector<double>& values, double centre) {
  std::vector<double> deviations;
  deviations.reserve(values.size());
  for (const double value : values) {
    deviations.push_back(std::abs(value - centre));
  }
  return median(std::move(deviations));
}

double median_error(double mad, std::size_t n) {
  return 1.253 * 1.483 * mad / std::sqrt(double(n));
}

Answer at_least(double estimate, double error, double threshold) {
  constexpr double kDeviations = 1.64;
  if (estimate - kDeviations * error > threshold) {
    return Answer::kYes;
  }
  if (estimate + kDeviations * error < threshold) {
    return Answer::kNo;
  }
  return Answer::kUnknown;
}

}  // namespace penstock::tuner
