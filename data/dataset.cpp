#include "data/dataset.h"

#include "framework/core/check.h"

namespace penstock::data {

void Dataset::fetch(const SampleKey& key, FetchBuffer& raw) const {
  raw.clear();
  (void)key;
}

i64 Dataset::targets(std::span<std::byte* const> /*fields*/) const {
  return 1;
}

std::string Dataset::describe(i64 index) const {
  return format("sample {}", index);
}

}  // namespace penstock::data
