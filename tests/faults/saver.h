// What the saver saves at a step, for whoever checks it.
#pragma once

#include <vector>

#include "framework/core/target.h"

namespace penstock::faults {

inline constexpr i64 kWeights = 8192;

inline std::vector<float> weights(i64 step) {
  std::vector<float> w(static_cast<std::size_t>(kWeights));
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = float(step) + float(i) / float(kWeights);
  }
  return w;
}

}  // namespace penstock::faults
