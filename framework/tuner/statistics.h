// Robust statistics and the sequential comparison of two throughputs.
#pragma once

#include <vector>

#include "framework/core/check.h"

namespace penstock::tuner {

// Median; the mean of the middle two for an even count. The values must not be empty.
double median(std::vector<double> values);
// Median absolute deviation from `centre`, not scaled.
double median_deviation(const std::vector<double>& values, double centre);
// Standard error of a median of n values with that deviation: 1.253 * 1.483 * mad / sqrt(n).
double median_error(double mad, std::size_t n);

enum class Answer { kUnknown, kYes, kNo };
// Is an estimate at least `threshold`? Known once it lies more than 1.64 standard errors away.
Answer at_least(double estimate, double error, double threshold);

}  // namespace penstock::tuner
