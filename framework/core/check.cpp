#include "framework/core/check.h"

namespace penstock {

void fail(const std::string& message) {
  throw Error(message);
}

}  // namespace penstock
