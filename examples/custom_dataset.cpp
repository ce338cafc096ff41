// A data set of one's own through the loader: samples are made by a formula, loaded by two workers, and
// come in the same order whatever the workers do.
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "data/loader.h"

using namespace penstock;

namespace {

class Squares final : public data::Dataset {
 public:
  i64 size() const override { return 1000; }
  std::span<const data::Field> fields() const override { return fields_; }
  std::string describe(i64 index) const override { return "square of " + std::to_string(index); }
  void load(const data::SampleKey& key, std::span<const std::byte> /*raw*/,
            std::span<std::byte* const> to) const override {
    const std::int64_t value[2] = {key.index, key.index * key.index};
    std::memcpy(to[0], value, sizeof value);
  }

 private:
  std::vector<data::Field> fields_ = {{.name = "pair", .dtype = DType::i64, .shape = {2}}};
};

}  // namespace

int main() {
  std::vector<std::int64_t> sums;
  for (const int workers : {0, 1, 4}) {
    data::Loader loader(std::make_shared<Squares>(),
                        {.sampler = {.seed = 1}, .batch = 32, .workers = workers, .end = 1000});
    std::int64_t sum = 0;
    std::int64_t place = 0;
    while (loader.left() > 0) {
      const data::Batch batch = loader.next(32);
      for (const data::Rows& rows : batch.fields[0]) {
        const auto* pairs = reinterpret_cast<const std::int64_t*>(rows.data);
        for (i64 i = 0; i < rows.count; ++i) {
          sum += ++place * pairs[2 * i + 1];  // depends on the order
        }
      }
      loader.release(batch);
    }
    std::printf("%d workers: %lld\n", workers, static_cast<long long>(sum));
    sums.push_back(sum);
  }
  return sums[0] == sums[1] && sums[0] == sums[2] ? 0 : 1;
}
