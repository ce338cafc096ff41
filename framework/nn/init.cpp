#include "framework/nn/init.h"

#include <cmath>

#include "framework/core/parallel.h"
#include "framework/core/random.h"

namespace penstock::nn {
namespace {

// FNV-1a: a parameter's stream follows its name, so adding a layer leaves the others as they were.
std::uint64_t hash(const std::string& name) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : name) {
    h = (h ^ std::uint8_t(c)) * 0x100000001b3u;
  }
  return h;
}

}  // namespace

Init Init::kaiming_normal(i64 fan) { return normal(std::sqrt(2.0F / float(std::max<i64>(1, fan)))); }
Init Init::fan_in_uniform(i64 fan_in) {
  return uniform(1.0F / std::sqrt(float(std::max<i64>(1, fan_in))));
}

void initialise(float* values, i64 count, const Init& init, std::uint64_t seed,
                const std::string& name) {
  const std::uint64_t position = hash(name);
  parallel::run(count, 4096, [&](i64 begin, i64 end) {
    for (i64 block = begin / 4; block * 4 < end; ++block) {
      const random::Four f = random::draw(seed, random::Stream::kInit, 0, position,
                                          std::uint64_t(block));
      const std::uint32_t words[4] = {f.x, f.y, f.z, f.w};
      for (i64 k = 0; k < 4; ++k) {
        const i64 i = block * 4 + k;
        if (i < begin || i >= end) {
          continue;
        }
        float v = 0;
        switch (init.kind) {
          case Init::Kind::kZeros: break;
          case Init::Kind::kOnes: v = 1; break;
          case Init::Kind::kUniform:
            v = init.scale * (2 * random::uniform(words[k]) - 1);
            break;
          case Init::Kind::kNormal: {
            // Box and Muller on the pair that this element belongs to.
            const double u = (double(words[k / 2 * 2]) + 1) * 0x1p-32;
            const double angle = 6.283185307179586 * double(words[k / 2 * 2 + 1]) * 0x1p-32;
            const double radius = std::sqrt(-2 * std::log(u));
            v = float(double(init.scale) * radius *
                      (k % 2 == 0 ? std::cos(angle) : std::sin(angle)));
            break;
          }
        }
        values[i] = v;
      }
    }
  });
}

}  // namespace penstock::nn
