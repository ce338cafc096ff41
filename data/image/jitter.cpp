#include "data/image/jitter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock::data::image {
namespace {

std::uint8_t rounded(float v) {
  return std::uint8_t(std::clamp(v + 0.5F, 0.0F, 255.0F));
}

float luma(const std::uint8_t* rgb) {
  return 0.299F * float(rgb[0]) + 0.587F * float(rgb[1]) + 0.114F * float(rgb[2]);
}

void brightness(float f, std::uint8_t* values, i64 count) {
  for (i64 i = 0; i < count; ++i) {
    values[i] = rounded(float(values[i]) * f);
  }
}

void contrast(float f, std::uint8_t* values, i64 pixels, int channels) {
  double sum = 0;
  for (i64 i = 0; i < pixels; ++i) {
    sum += channels == 3 ? double(luma(values + 3 * i)) : double(values[i]);
  }
  const float mean = float(std::floor(sum / double(pixels) + 0.5));
  for (i64 i = 0; i < pixels * channels; ++i) {
    values[i] = rounded(mean + (float(values[i]) - mean) * f);
  }
}

void saturation(float f, std::uint8_t* values, i64 pixels) {
  for (i64 i = 0; i < pixels; ++i) {
    std::uint8_t* rgb = values + 3 * i;
    const float gray = luma(rgb);
    for (int c = 0; c < 3; ++c) {
      rgb[c] = rounded(gray + (float(rgb[c]) - gray) * f);
    }
  }
}

// The hue of HSV moved by `turn`, value and saturation kept.
void hue(float turn, std::uint8_t* values, i64 pixels) {
  for (i64 i = 0; i < pixels; ++i) {
    std::uint8_t* rgb = values + 3 * i;
    const float r = rgb[0];
    const float g = rgb[1];
    const float b = rgb[2];
    const float most = std::max({r, g, b});
    const float chroma = most - std::min({r, g, b});
    if (chroma == 0) {
      continue;
    }
    float sector = most == r   ? (g - b) / chroma
                   : most == g ? 2.0F + (b - r) / chroma
                               : 4.0F + (r - g) / chroma;
    sector += 6.0F * turn;
    sector -= 6.0F * std::floor(sector / 6.0F);
    // Each channel is a trapezoid of the distance from its own sector (Smith 1978, in f(n) form).
    const auto channel = [&](float n) {
      const float k = std::fmod(n + sector, 6.0F);
      return most - chroma * std::clamp(std::min(k, 4.0F - k), 0.0F, 1.0F);
    };
    rgb[0] = rounded(channel(5.0F));
    rgb[1] = rounded(channel(3.0F));
    rgb[2] = rounded(channel(1.0F));
  }
}

}  // namespace

void apply_jitter(const Jitter& jitter, random::Generator& generator, std::uint8_t* values,
                  i64 pixels, int channels) {
  int order[4] = {0, 1, 2, 3};
  for (int i = 3; i > 0; --i) {
    std::swap(order[i], order[generator.below(std::uint32_t(i + 1))]);
  }
  const auto factor = [&generator](float x) {
    return generator.uniform(std::max(0.0F, 1.0F - x), 1.0F + x);
  };
  // All four are drawn, so that one strength does not shift another's draw.
  const float by_brightness = factor(jitter.brightness);
  const float by_contrast = factor(jitter.contrast);
  const float by_saturation = factor(jitter.saturation);
  const float by_hue = generator.uniform(-jitter.hue, jitter.hue);
  for (const int step : order) {
    if (step == 0 && jitter.brightness > 0) {
      brightness(by_brightness, values, pixels * channels);
    } else if (step == 1 && jitter.contrast > 0) {
      contrast(by_contrast, values, pixels, channels);
    } else if (step == 2 && jitter.saturation > 0 && channels == 3) {
      saturation(by_saturation, values, pixels);
    } else if (step == 3 && jitter.hue > 0 && channels == 3) {
      hue(by_hue, values, pixels);
    }
  }
}

}  // namespace penstock::data::image
