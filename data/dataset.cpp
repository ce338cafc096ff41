#include "data/dataset.h"

#include "framework/core/check.h"

namespace penstock::data {

void Dataset::fetch(const SampleKey& key, FetchBuffer& raw) const {
  raw.clear();
  (void)key;
}

void Dataset::load_many(std::span<const SampleKey> keys, std::span<std::byte* const> to) const {
  std::vector<std::byte*> rows(to.begin(), to.end());
  std::vector<i64> bytes;
  for (const Field& f : fields()) {
    bytes.push_back(f.bytes());
  }
  for (const SampleKey& key : keys) {
    load(key, {}, rows);
    for (std::size_t f = 0; f < rows.size(); ++f) {
      rows[f] += bytes[f];
    }
  }
}

i64 Dataset::targets(std::span<std::byte* const> /*fields*/) const {
  return 1;
}

std::string Dataset::describe(i64 index) const {
  return format("sample {}", index);
}

}  // namespace penstock::data
