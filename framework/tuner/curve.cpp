#include "framework/tuner/curve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "framework/tuner/statistics.h"

namespace penstock::tuner {
namespace {

constexpr double kLeastError = 0.004;   // no meter is better than this, relative
constexpr double kHuber = 2.0;          // deviations beyond which a point loses weight
constexpr double kParameterCost = 4.0;  // of the standardised loss that one more must explain
constexpr int kRounds = 12;

double deviation_of(const CurvePoint& point) {
  return std::hypot(point.error, kLeastError);
}

double huber(double z) {
  const double size = std::abs(z);
  return size <= kHuber ? z * z : kHuber * (2 * size - kHuber);
}

double loss_of(const StepFit& fit, const std::vector<CurvePoint>& points) {
  double loss = 0;
  for (const CurvePoint& point : points) {
    loss += huber((fit.seconds(point.batch) / point.seconds - 1) / deviation_of(point));
  }
  return loss;
}

// Solves the normal equations of `n` columns by elimination with pivots; false when singular.
bool solve(std::array<std::array<double, 4>, 3>& m, int n, std::array<double, 3>& x) {
  for (int i = 0; i < n; ++i) {
    int pivot = i;
    for (int j = i + 1; j < n; ++j) {
      if (std::abs(m[std::size_t(j)][std::size_t(i)]) >
          std::abs(m[std::size_t(pivot)][std::size_t(i)])) {
        pivot = j;
      }
    }
    std::swap(m[std::size_t(i)], m[std::size_t(pivot)]);
    if (std::abs(m[std::size_t(i)][std::size_t(i)]) < 1e-12) {
      return false;
    }
    for (int j = 0; j < n; ++j) {
      if (j == i) {
        continue;
      }
      const double factor = m[std::size_t(j)][std::size_t(i)] / m[std::size_t(i)][std::size_t(i)];
      for (int k = i; k < 4; ++k) {
        m[std::size_t(j)][std::size_t(k)] -= factor * m[std::size_t(i)][std::size_t(k)];
      }
    }
  }
  for (int i = 0; i < n; ++i) {
    x[std::size_t(i)] = m[std::size_t(i)][3] / m[std::size_t(i)][std::size_t(i)];
  }
  return true;
}

// a + b B + q B^2 over the given powers of B, reweighted so that outliers count less. False when a
// coefficient is negative: another set of powers is then the answer.
bool fit_powers(const std::vector<CurvePoint>& points, const std::vector<int>& powers,
                StepFit& fit) {
  if (points.size() < powers.size()) {
    return false;
  }
  const double scale = points.back().batch;
  std::vector<double> weight(points.size(), 1.0);
  for (int round = 0; round < kRounds; ++round) {
    std::array<std::array<double, 4>, 3> normal{};
    for (std::size_t p = 0; p < points.size(); ++p) {
      const double deviation = deviation_of(points[p]);
      const double w = weight[p] / (deviation * deviation);
      std::array<double, 3> row{};
      for (std::size_t i = 0; i < powers.size(); ++i) {
        row[i] = std::pow(points[p].batch / scale, powers[i]) / points[p].seconds;
      }
      for (std::size_t i = 0; i < powers.size(); ++i) {
        for (std::size_t j = 0; j < powers.size(); ++j) {
          normal[i][j] += w * row[i] * row[j];
        }
        normal[i][3] += w * row[i];
      }
    }
    // Columns are scaled to a unit diagonal: the pivots then have one size.
    std::array<double, 3> unit{};
    for (std::size_t i = 0; i < powers.size(); ++i) {
      unit[i] = 1 / std::sqrt(normal[i][i]);
    }
    for (std::size_t i = 0; i < powers.size(); ++i) {
      for (std::size_t j = 0; j < powers.size(); ++j) {
        normal[i][j] *= unit[i] * unit[j];
      }
      normal[i][3] *= unit[i];
    }
    std::array<double, 3> x{};
    if (!solve(normal, int(powers.size()), x)) {
      return false;
    }
    fit.a = fit.b = fit.q = 0;
    for (std::size_t i = 0; i < powers.size(); ++i) {
      const double value = x[i] * unit[i] / std::pow(scale, powers[i]);
      if (value < 0) {
        return false;
      }
      (powers[i] == 0 ? fit.a : powers[i] == 1 ? fit.b : fit.q) = value;
    }
    std::vector<double> sizes;
    for (const CurvePoint& point : points) {
      const double line = fit.a + fit.b * point.batch + fit.q * point.batch * point.batch;
      sizes.push_back(std::abs(line / point.seconds - 1) / deviation_of(point));
    }
    const double spread = std::max(1.0, 1.483 * median(sizes));
    for (std::size_t p = 0; p < points.size(); ++p) {
      weight[p] = std::min(1.0, kHuber * spread / std::max(1e-12, sizes[p]));
    }
  }
  return true;
}

// The best of the sets of powers up to `degree` whose coefficients are all >= 0.
StepFit fit_line(const std::vector<CurvePoint>& points, int degree) {
  static const std::vector<std::vector<int>> kSets = {{0},    {1},    {0, 1},   {2},
                                                      {0, 2}, {1, 2}, {0, 1, 2}};
  StepFit best;
  double least = 1e300;
  for (const std::vector<int>& powers : kSets) {
    StepFit fit;
    if (powers.back() > degree || !fit_powers(points, powers, fit)) {
      continue;
    }
    const double loss = loss_of(fit, points);
    if (loss < least * (1 - 1e-9)) {
      least = loss;
      best = fit;
    }
  }
  return best;
}

// With a floor: the batches below the hinge lie on it.
StepFit fit_hinge(const std::vector<CurvePoint>& points) {
  StepFit best = fit_line(points, 1);
  double least = loss_of(best, points);
  for (std::size_t below = 1; below + 2 <= points.size(); ++below) {
    std::vector<double> flat;
    for (std::size_t i = 0; i < below; ++i) {
      flat.push_back(points[i].seconds);
    }
    StepFit fit = fit_line({points.begin() + std::ptrdiff_t(below), points.end()}, 1);
    fit.c = median(flat);
    const double loss = loss_of(fit, points) + kParameterCost;
    if (loss < least) {
      least = loss;
      best = fit;
    }
  }
  return best;
}

}  // namespace

double StepFit::seconds(double batch) const {
  return std::max(c, a + b * batch + q * batch * batch);
}

double StepFit::half_batch() const {
  return b > 0 ? a / b : 0;
}

double StepFit::limit() const {
  return b > 0 ? 1 / b : 0;
}

double StepFit::elasticity(double batch) const {
  const double line = a + b * batch + q * batch * batch;
  if (line <= 0 || c > line) {
    return 1;
  }
  return std::clamp(1 - (b + 2 * q * batch) * batch / line, 0.0, 1.0);
}

StepFit fit_step_time(const std::vector<CurvePoint>& points) {
  check(!points.empty(), "curve: a fit of no points was asked for");
  if (points.size() == 1) {
    return {.b = points[0].seconds / points[0].batch, .points = 1};
  }
  StepFit fit = fit_hinge(points);
  if (points.size() >= 5) {
    // Superlinear only if it predicts the largest batches better without having seen them.
    double miss = 0;
    double miss_curved = 0;
    for (std::size_t held = 1; held <= 2; ++held) {
      const std::vector<CurvePoint> seen(points.begin(), points.end() - std::ptrdiff_t(held));
      const CurvePoint& next = points[seen.size()];
      miss += std::abs(fit_hinge(seen).seconds(next.batch) / next.seconds - 1);
      miss_curved += std::abs(fit_line(seen, 2).seconds(next.batch) / next.seconds - 1);
    }
    if (miss > 0.02 && miss_curved < 0.5 * miss) {
      fit = fit_line(points, 2);
    }
  }
  double square = 0;
  for (const CurvePoint& point : points) {
    const double miss = fit.seconds(point.batch) / point.seconds - 1;
    square += miss * miss;
  }
  fit.relative_error = std::sqrt(square / double(points.size()));
  fit.points = int(points.size());
  return fit;
}

namespace {

// Pools neighbours that fall, in place, over [first, last) in steps of `step`; returns the loss.
double pool_rising(std::vector<double>& values, const std::vector<double>& observed,
                   const std::vector<double>& weights, const std::vector<std::size_t>& order) {
  struct Block {
    double sum, weight;
    std::size_t count;
  };
  std::vector<Block> blocks;
  for (const std::size_t i : order) {
    blocks.push_back({observed[i] * weights[i], weights[i], 1});
    while (blocks.size() > 1) {
      Block& last = blocks.back();
      Block& before = blocks[blocks.size() - 2];
      if (before.sum * last.weight <= last.sum * before.weight) {
        break;
      }
      before.sum += last.sum;
      before.weight += last.weight;
      before.count += last.count;
      blocks.pop_back();
    }
  }
  double loss = 0;
  std::size_t at = 0;
  for (const Block& block : blocks) {
    for (std::size_t n = 0; n < block.count; ++n, ++at) {
      const std::size_t i = order[at];
      values[i] = block.sum / block.weight;
      loss += weights[i] * (values[i] - observed[i]) * (values[i] - observed[i]);
    }
  }
  return loss;
}

}  // namespace

std::vector<double> unimodal_rates(const std::vector<CurvePoint>& points) {
  std::vector<double> observed;
  std::vector<double> weights;
  for (const CurvePoint& point : points) {
    const double rate = point.batch / point.seconds;
    observed.push_back(rate);
    weights.push_back(1 / std::pow(rate * deviation_of(point), 2));
  }
  std::vector<double> best;
  double least = 1e300;
  for (std::size_t peak = 0; peak < points.size(); ++peak) {
    std::vector<std::size_t> up;
    std::vector<std::size_t> down;
    for (std::size_t i = 0; i <= peak; ++i) {
      up.push_back(i);
    }
    for (std::size_t i = points.size(); i-- > peak + 1;) {
      down.push_back(i);
    }
    std::vector<double> values(points.size());
    const double loss =
        pool_rising(values, observed, weights, up) + pool_rising(values, observed, weights, down);
    if (loss < least) {
      least = loss;
      best = values;
    }
  }
  return best;
}

}  // namespace penstock::tuner
