// Colour jitter on 8-bit pixels; definitions in transform.h.
#pragma once

#include <cstdint>

#include "data/image/transform.h"
#include "framework/core/random.h"

namespace penstock::data::image {

// What an augmentation draws for; switching one on or off leaves the others' draws as they were.
enum class AugmentStep : std::uint32_t { kCrop = 1, kFlip = 2, kJitter = 3, kErase = 4 };

// Changes `pixels` interleaved pixels in place.
void apply_jitter(const Jitter& jitter, random::Generator& generator, std::uint8_t* values,
                  i64 pixels, int channels);

}  // namespace penstock::data::image
