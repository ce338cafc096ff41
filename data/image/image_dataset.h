// Pictures with one label each, from a folder tree or from tar shards, as a data set.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "data/dataset.h"
#include "data/image/cache.h"
#include "data/image/decode.h"
#include "data/image/index.h"
#include "data/image/reader.h"
#include "data/image/transform.h"

namespace penstock::data::image {

struct ImageDatasetOptions {
  TransformOptions transform{};
  DecodeOptions decode{};  // channels and fast follow from the transform
  CacheOptions cache{};
  // Null: files, read without delay, each at most 256 MiB.
  std::shared_ptr<const Reader> reader{};
};

// Fields "image" u8 or f32 [size, size, channels] and "label" i64 []. A sample is a pure function
// of its key: no cache, thread or order changes it.
class ImageDataset final : public Dataset {
 public:
  // Throws ConfigError when options cannot be.
  ImageDataset(FolderIndex index, const ImageDatasetOptions& options);
  ImageDataset(ShardIndex index, const ImageDatasetOptions& options);

  i64 size() const override;
  std::span<const Field> fields() const override { return fields_; }
  bool needs_fetch() const override { return true; }
  void fetch(const SampleKey& key, FetchBuffer& raw) const override;
  void load(const SampleKey& key, std::span<const std::byte> raw,
            std::span<std::byte* const> fields) const override;
  std::string describe(i64 index) const override;

  // The number of classes; labels lie below it.
  i64 classes() const;
  // In the order of labels, for the checkpoint; empty when the data name none.
  std::vector<std::string> class_names() const;
  i64 label(i64 index) const;
  // Changes when the list of samples changes, for the resume check.
  std::uint64_t fingerprint() const;
  const SampleCache& cache() const { return *cache_; }

 private:
  void set_up();
  void check_index(i64 index) const;
  // The name for messages, in place.path.
  void name_of(i64 index, Place& place) const;

  std::variant<FolderIndex, ShardIndex> index_;
  ImageDatasetOptions options_;
  std::vector<Field> fields_;
  std::unique_ptr<SampleCache> cache_;
};

// The folder or shards, scanned and opened. Throws DataError naming file or member.
std::unique_ptr<ImageDataset> open_image_folder(const std::string& root,
                                                const FolderOptions& folder,
                                                const ImageDatasetOptions& options);
std::unique_ptr<ImageDataset> open_image_shards(const std::vector<std::string>& shards,
                                                const ShardOptions& shard,
                                                const ImageDatasetOptions& options);

}  // namespace penstock::data::image
