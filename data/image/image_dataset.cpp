#include "data/image/image_dataset.h"

#include <cstring>

#include "data/image/name.h"
#include "framework/core/check.h"

namespace penstock::data::image {
namespace {

// One per thread, kept: decoder state and buffers are used again for every sample.
struct Context {
  Pipeline pipeline;
  Place place;
};

Context& context() {
  thread_local Context own;
  return own;
}

}  // namespace

ImageDataset::ImageDataset(FolderIndex index, const ImageDatasetOptions& options)
    : index_(std::move(index)), options_(options) {
  set_up();
}

ImageDataset::ImageDataset(ShardIndex index, const ImageDatasetOptions& options)
    : index_(std::move(index)), options_(options) {
  set_up();
}

void ImageDataset::set_up() {
  const TransformOptions& transform = options_.transform;
  check_options(transform);
  if (options_.cache.max_bytes > 0 && options_.cache.kind == CacheKind::kPixels &&
      transform.quality == Quality::kFast) {
    throw ConfigError(
        "image data set: a cache of pixels needs quality: matched, since fast decodes each crop at "
        "its own scale; cache files instead");
  }
  options_.decode.channels = transform.channels;
  options_.decode.fast = transform.quality == Quality::kFast;
  if (options_.reader == nullptr) {
    options_.reader = make_reader({});
  }
  cache_ = std::make_unique<SampleCache>(size(), options_.cache);
  fields_ = {{"image",
              transform.normalise ? DType::f32 : DType::u8,
              {transform.size, transform.size, transform.channels}},
             {"label", DType::i64, Shape{}}};
}

void ImageDataset::check_index(i64 index) const {
  check(index >= 0 && index < size(), "image data set: sample {} of {}", index, size());
}

i64 ImageDataset::size() const {
  return std::visit([](const auto& index) { return index.size(); }, index_);
}

i64 ImageDataset::label(i64 index) const {
  check_index(index);
  return std::visit([index](const auto& from) { return from.label(index); }, index_);
}

i64 ImageDataset::classes() const {
  const auto* shards = std::get_if<ShardIndex>(&index_);
  return shards != nullptr ? shards->classes() : i64(class_names().size());
}

std::vector<std::string> ImageDataset::class_names() const {
  return std::visit([](const auto& index) { return index.class_names(); }, index_);
}

std::uint64_t ImageDataset::fingerprint() const {
  return std::visit([](const auto& index) { return index.fingerprint(); }, index_);
}

void ImageDataset::name_of(i64 index, Place& place) const {
  if (const auto* shards = std::get_if<ShardIndex>(&index_)) {
    shards->describe(index, place.path);
  } else {
    std::get<FolderIndex>(index_).place(index, place);
  }
}

std::string ImageDataset::describe(i64 index) const {
  check_index(index);
  Place place;
  name_of(index, place);
  return printable(place.path);
}

void ImageDataset::fetch(const SampleKey& key, FetchBuffer& raw) const {
  check_index(key.index);
  // Nothing is ever evicted, so load() will find what is here now.
  if (cache_->holds(key.index)) {
    raw.clear();
    return;
  }
  Place& place = context().place;
  std::visit([&](const auto& index) { index.place(key.index, place); }, index_);
  options_.reader->read(place.path, place.offset, place.size, raw);
}

void ImageDataset::load(const SampleKey& key, std::span<const std::byte> raw,
                        std::span<std::byte* const> fields) const {
  check_index(key.index);
  Context& own = context();
  name_of(key.index, own.place);
  const std::string& name = own.place.path;
  const i64 number = label(key.index);
  std::memcpy(fields[1], &number, sizeof number);

  Pixels pixels = cache_->pixels(key.index);
  if (pixels.data == nullptr && cache_->enabled() && cache_->kind() == CacheKind::kPixels) {
    pixels = own.pipeline.decode(options_.decode, raw, name);
    cache_->store_pixels(key.index, pixels);
  }
  if (pixels.data != nullptr) {
    own.pipeline.run(options_.transform, key, pixels, name, fields[0]);
    return;
  }
  const std::span<const std::byte> kept = cache_->file(key.index);
  const std::span<const std::byte> file = kept.data() != nullptr ? kept : raw;
  own.pipeline.run(options_.transform, options_.decode, key, file, name, fields[0]);
  if (kept.data() == nullptr && cache_->enabled()) {
    cache_->store_file(key.index, raw);
  }
}

std::unique_ptr<ImageDataset> open_image_folder(const std::string& root,
                                                const FolderOptions& folder,
                                                const ImageDatasetOptions& options) {
  return std::make_unique<ImageDataset>(FolderIndex::scan(root, folder), options);
}

std::unique_ptr<ImageDataset> open_image_shards(const std::vector<std::string>& shards,
                                                const ShardOptions& shard,
                                                const ImageDatasetOptions& options) {
  return std::make_unique<ImageDataset>(ShardIndex::scan(shards, shard), options);
}

}  // namespace penstock::data::image
