#include "data/image/transform.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/image/jitter.h"
#include "data/image/name.h"
#include "framework/core/check.h"
#include "framework/core/random.h"

namespace penstock::data::image {
namespace {

constexpr int kTries = 10;
// From this remaining factor on, two taps would skip pixels: the fast mode antialiases too.
constexpr double kPlainBelow = 2.0;

random::Generator draws(const SampleKey& key, AugmentStep step) {
  // Sample numbers stay below 2^40, epochs below 2^24: no two samples share a position.
  const std::uint64_t position = (std::uint64_t(key.epoch) << 40) | std::uint64_t(key.index);
  return {key.seed, random::Stream::kAugment, std::uint32_t(step), position};
}

double between(random::Generator& generator, Range range) {
  return range.low + (range.high - range.low) * double(generator.uniform());
}

i64 below(random::Generator& generator, i64 n) {
  return i64(generator.below(std::uint32_t(n)));
}

struct Size {
  i64 width = 0;
  i64 height = 0;
};

// A rectangle inside width x height by area and aspect; false when no try fits.
bool draw_size(random::Generator& generator, Range area, Range ratio, Size inside, Size& drawn) {
  const Range log_ratio{std::log(ratio.low), std::log(ratio.high)};
  for (int i = 0; i < kTries; ++i) {
    const double target = double(inside.width) * double(inside.height) * between(generator, area);
    const double aspect = std::exp(between(generator, log_ratio));
    drawn = {std::llround(std::sqrt(target * aspect)), std::llround(std::sqrt(target / aspect))};
    if (drawn.width > 0 && drawn.height > 0 && drawn.width <= inside.width &&
        drawn.height <= inside.height) {
      return true;
    }
  }
  return false;
}

Axis whole_box(i64 first, i64 length, i64 size) {
  return {.begin = double(first),
          .end = double(first + length),
          .low = first,
          .high = first + length,
          .full = size,
          .first = 0,
          .count = size};
}

Placement random_resized_crop(const TransformOptions& options, const SampleKey& key, Size picture) {
  auto generator = draws(key, AugmentStep::kCrop);
  Size crop;
  i64 x = 0;
  i64 y = 0;
  if (draw_size(generator, options.area, options.ratio, picture, crop)) {
    x = below(generator, picture.width - crop.width + 1);
    y = below(generator, picture.height - crop.height + 1);
  } else {
    const double aspect = double(picture.width) / double(picture.height);
    crop = picture;
    if (aspect < options.ratio.low) {
      crop.height =
          std::min(picture.height, i64(std::llround(double(crop.width) / options.ratio.low)));
    } else if (aspect > options.ratio.high) {
      crop.width =
          std::min(picture.width, i64(std::llround(double(crop.height) * options.ratio.high)));
    }
    crop = {std::max<i64>(1, crop.width), std::max<i64>(1, crop.height)};
    x = (picture.width - crop.width) / 2;
    y = (picture.height - crop.height) / 2;
  }
  return {.x = whole_box(x, crop.width, options.size),
          .y = whole_box(y, crop.height, options.size)};
}

// One axis of resize, pad, crop. `resized` is the picture's length after resizing; `offset` the
// crop's start in the padded picture.
void crop_axis(i64 length, i64 resized, i64 pad, i64 offset, i64 size, Axis& axis, i64& start) {
  const i64 first = std::max<i64>(0, offset - pad);  // in the resized picture
  const i64 last = std::min(resized, offset - pad + size);
  axis = {.begin = 0,
          .end = double(length),
          .low = 0,
          .high = length,
          .full = resized,
          .first = first,
          .count = std::max<i64>(0, last - first)};
  start = std::clamp<i64>(pad - offset, 0, size);
}

Placement resize_crop(const TransformOptions& options, const SampleKey& key, Size picture,
                      std::string_view name) {
  Size resized = picture;
  if (options.shorter > 0) {
    const bool tall = picture.height > picture.width;
    const i64 shorter = tall ? picture.width : picture.height;
    const i64 longer = tall ? picture.height : picture.width;
    const i64 scaled = std::max<i64>(1, options.shorter * longer / shorter);
    resized = tall ? Size{options.shorter, scaled} : Size{scaled, options.shorter};
  }
  const Size padded{resized.width + 2 * options.pad, resized.height + 2 * options.pad};
  i64 x = 0;
  i64 y = 0;
  if (options.random_place) {
    if (padded.width < options.size || padded.height < options.size) {
      throw DataError(format(
          "{}: a random crop of {} x {} does not fit into {} x {}; enlarge data.resize or data.pad",
          quoted_name(name), options.size, options.size, padded.width, padded.height));
    }
    auto generator = draws(key, AugmentStep::kCrop);
    x = below(generator, padded.width - options.size + 1);
    y = below(generator, padded.height - options.size + 1);
  } else {
    // round() of a half goes to the even number, as torchvision's does.
    x = i64(std::nearbyint(double(padded.width - options.size) / 2));
    y = i64(std::nearbyint(double(padded.height - options.size) / 2));
  }
  Placement p;
  crop_axis(picture.width, resized.width, options.pad, x, options.size, p.x, p.left);
  crop_axis(picture.height, resized.height, options.pad, y, options.size, p.y, p.top);
  return p;
}

void check_range(const char* name, Range range, double least, double most) {
  if (!(range.low >= least && range.low <= range.high && range.high <= most)) {
    throw ConfigError(
        format("image transform: {} from {:.4g} to {:.4g} must ascend within "
               "[{:.4g}, {:.4g}]",
               name, range.low, range.high, least, most));
  }
}

bool covers(const Placement& p, i64 size) {
  return p.x.count == size && p.y.count == size;
}

int reduction(const Placement& p) {
  const double x = (p.x.end - p.x.begin) / double(p.x.full);
  const double y = (p.y.end - p.y.begin) / double(p.y.full);
  const double least = std::min(x, y);
  return least >= 8 ? 8 : least >= 4 ? 4 : least >= 2 ? 2 : 1;
}

void erase(const TransformOptions& options, const SampleKey& key, std::byte* out) {
  auto generator = draws(key, AugmentStep::kErase);
  if (generator.uniform() >= options.erase.probability) {
    return;
  }
  const i64 size = options.size;
  Size hole;
  if (!draw_size(generator, options.erase.area, options.erase.ratio, {size, size}, hole)) {
    return;
  }
  const i64 x = below(generator, size - hole.width + 1);
  const i64 y = below(generator, size - hole.height + 1);
  const i64 value = options.normalise ? i64(sizeof(float)) : 1;
  const i64 pixel = value * options.channels;
  const int fill = options.normalise ? 0 : options.erase.fill;
  for (i64 row = y; row < y + hole.height; ++row) {
    std::memset(out + (row * size + x) * pixel, fill, std::size_t(hole.width * pixel));
  }
}

}  // namespace

void check_options(const TransformOptions& o) {
  constexpr i64 kLargest = 16384;
  if (o.size < 1 || o.size > kLargest || o.shorter < 0 || o.shorter > kLargest || o.pad < 0 ||
      o.pad > kLargest) {
    throw ConfigError(
        format("image transform: size {}, resize {} and pad {} must lie within "
               "1 (resize, pad: 0) and {}",
               o.size, o.shorter, o.pad, kLargest));
  }
  if (o.channels != 1 && o.channels != 3) {
    throw ConfigError(format("image transform: {} channels; expected 1 or 3", o.channels));
  }
  check_range("area", o.area, 1e-6, 1.0);
  check_range("ratio", o.ratio, 0.01, 100.0);
  check_range("erase.area", o.erase.area, 0.0, 1.0);
  check_range("erase.ratio", o.erase.ratio, 0.01, 100.0);
  check_range("flips and erase.probability",
              {std::min({o.flip_horizontal, o.flip_vertical, o.erase.probability}),
               std::max({o.flip_horizontal, o.flip_vertical, o.erase.probability})},
              0.0, 1.0);
  check_range("jitter",
              {std::min({o.jitter.brightness, o.jitter.contrast, o.jitter.saturation}),
               std::max({o.jitter.brightness, o.jitter.contrast, o.jitter.saturation})},
              0.0, 100.0);
  check_range("jitter.hue", {o.jitter.hue, o.jitter.hue}, 0.0, 0.5);
  for (const float deviation : o.deviation) {
    check_range("deviation", {deviation, deviation}, 1e-6, 1e6);
  }
}

Placement place(const TransformOptions& options, const SampleKey& key, i64 width, i64 height,
                std::string_view name) {
  const Size picture{width, height};
  Placement p;
  switch (options.geometry) {
    case Geometry::kRandomResizedCrop: p = random_resized_crop(options, key, picture); break;
    case Geometry::kResizeCrop: p = resize_crop(options, key, picture, name); break;
    case Geometry::kStretch:
      p.x = whole_box(0, width, options.size);
      p.y = whole_box(0, height, options.size);
      break;
  }
  auto generator = draws(key, AugmentStep::kFlip);
  p.x.mirrored = generator.uniform() < options.flip_horizontal;
  p.y.mirrored = generator.uniform() < options.flip_vertical;
  // Mirroring the canvas moves the picture's place on it.
  p.left = p.x.mirrored ? options.size - p.left - p.x.count : p.left;
  p.top = p.y.mirrored ? options.size - p.top - p.y.count : p.top;
  return p;
}

void Pipeline::finish(const TransformOptions& options, const SampleKey& key,
                      const Placement& placement, const Pixels& pixels, std::byte* out) {
  const i64 size = options.size;
  const auto values = std::size_t(size * size * options.channels);
  // u8 output is written in place; floats are made from a scratch canvas.
  std::uint8_t* canvas = reinterpret_cast<std::uint8_t*>(out);
  if (options.normalise) {
    canvas_.resize(values);
    canvas = canvas_.data();
  }
  const Placement& p = placement;
  const bool fast = options.quality == Quality::kFast;
  const double remaining =
      std::max((p.x.end - p.x.begin) / double(p.x.full), (p.y.end - p.y.begin) / double(p.y.full)) /
      pixels.scale;
  const bool antialias = !fast || remaining >= kPlainBelow;
  if (covers(p, size)) {
    resampler_.run({.source = pixels, .x = p.x, .y = p.y, .antialias = antialias, .out = canvas});
  } else {
    std::memset(canvas, options.fill, values);
    if (p.x.count > 0 && p.y.count > 0) {
      const i64 row = p.x.count * options.channels;
      patch_.resize(std::size_t(row * p.y.count));
      resampler_.run(
          {.source = pixels, .x = p.x, .y = p.y, .antialias = antialias, .out = patch_.data()});
      for (i64 y = 0; y < p.y.count; ++y) {
        std::memcpy(canvas + ((p.top + y) * size + p.left) * options.channels,
                    patch_.data() + y * row, std::size_t(row));
      }
    }
  }
  if (options.jitter.any()) {
    auto generator = draws(key, AugmentStep::kJitter);
    apply_jitter(options.jitter, generator, canvas, size * size, options.channels);
  }
  if (options.normalise) {
    Normalise by;
    for (std::size_t c = 0; c < 3; ++c) {
      by.scale[c] = 1.0F / (255.0F * options.deviation[c]);
      by.shift[c] = -options.mean[c] / options.deviation[c];
    }
    normalise(canvas, size * size, options.channels, by, reinterpret_cast<float*>(out));
  }
  if (options.erase.probability > 0) {
    erase(options, key, out);
  }
}

void Pipeline::run(const TransformOptions& options, const DecodeOptions& decode,
                   const SampleKey& key, std::span<const std::byte> file, std::string_view name,
                   std::byte* out) {
  const bool fast = options.quality == Quality::kFast;
  DecodeOptions with = decode;
  with.channels = options.channels;
  with.fast = fast;
  const Header header = decoder_.open(file, name, with);
  const Placement p = place(options, key, header.width, header.height, name);
  const int reduce = fast && header.codec == Codec::kJpeg ? reduction(p) : 1;
  Region region{0, 0, 1, 1};  // a crop that is all padding still decodes, to find damage
  if (p.x.count > 0 && p.y.count > 0) {
    const Span columns = taps_of(p.x, true);
    const Span rows = taps_of(p.y, true);
    region = {columns.first, rows.first, columns.second - columns.first, rows.second - rows.first};
  }
  finish(options, key, p, decoder_.decode(region, reduce), out);
}

void Pipeline::run(const TransformOptions& options, const SampleKey& key, const Pixels& pixels,
                   std::string_view name, std::byte* out) {
  finish(options, key, place(options, key, pixels.width, pixels.height, name), pixels, out);
}

Pixels Pipeline::decode(const DecodeOptions& decode, std::span<const std::byte> file,
                        std::string_view name) {
  const Header header = decoder_.open(file, name, decode);
  return decoder_.decode({0, 0, header.width, header.height});
}

}  // namespace penstock::data::image
