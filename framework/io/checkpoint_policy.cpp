#include "framework/io/checkpoint_policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace penstock::io {

bool improves(double a, std::optional<double> b, Better better) {
  if (!std::isfinite(a)) {
    return false;
  }
  return !b || !std::isfinite(*b) || (better == Better::kLower ? a < *b : a > *b);
}

bool BestMetric::update(double value) {
  if (!improves(value, best_, better_)) {
    ++stale_;
    return false;
  }
  best_ = value;
  stale_ = 0;
  return true;
}

std::vector<std::size_t> superseded(std::span<const Manifest> manifests,
                                    const Retention& retention) {
  if (retention.keep_last <= 0 || manifests.empty()) {
    return {};
  }
  std::vector<bool> kept(manifests.size(), false);
  const std::size_t last = std::min(manifests.size(), std::size_t(retention.keep_last));
  std::fill(kept.end() - std::ptrdiff_t(last), kept.end(), true);

  std::vector<std::size_t> ranked;
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    if (manifests[i].metric && std::isfinite(*manifests[i].metric)) {
      ranked.push_back(i);
    }
  }
  // Of equal metrics the earlier one is the better: it got there first.
  std::stable_sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) {
    return improves(*manifests[a].metric, manifests[b].metric, retention.better);
  });
  ranked.resize(std::min(ranked.size(), std::size_t(std::max<i64>(0, retention.keep_best))));
  for (const std::size_t i : ranked) {
    kept[i] = true;
  }
  std::vector<std::size_t> gone;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i]) {
      gone.push_back(i);
    }
  }
  return gone;
}

FailureRule::Action FailureRule::failed(bool last) {
  ++failures_;
  if (!last && failures_ < policy_.patience) {
    return Action::kContinue;
  }
  return policy_.on_full == OnFull::kPause ? Action::kPause : Action::kStop;
}

void SaveInterval::saved(double now, double cost) {
  last_ = now;
  cost_ = std::max(cost, 0.5 * (cost_ + cost));
}

double SaveInterval::interval() const {
  const double afforded = cost_ / options_.budget;
  if (options_.seconds > 0) {
    return std::max(options_.seconds, afforded);
  }
  return std::max(std::clamp(afforded, options_.shortest, options_.longest), afforded);
}

bool SaveInterval::stretched() const {
  return cost_ / options_.budget > (options_.seconds > 0 ? options_.seconds : options_.longest);
}

}  // namespace penstock::io
