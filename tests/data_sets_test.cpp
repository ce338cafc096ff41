// Data sets that are made of others or of nothing: the same sample for the same key, always.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "data/formats.h"
#include "data/memory_set.h"
#include "framework/core/random.h"
#include "tests/data_helpers.h"

namespace penstock::data {
namespace {

std::shared_ptr<const Dataset> numbered(i64 count, i64 h, i64 w, i64 c) {
  std::vector<std::byte> pixels(std::size_t(count * h * w * c));
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = std::byte(i % 255 + 1);
  }
  std::vector<std::int64_t> labels;
  for (i64 i = 0; i < count; ++i) {
    labels.push_back(i);
  }
  const auto bytes = std::as_bytes(std::span(labels));
  std::vector<MemorySet::Column> columns;
  columns.push_back({{"image", DType::u8, {h, w, c}}, std::move(pixels)});
  columns.push_back({{"label", DType::i64, {}}, {bytes.begin(), bytes.end()}});
  return std::make_shared<MemorySet>("numbered", std::move(columns));
}

std::shared_ptr<const Dataset> some_text(const DataFolder& folder, i64 sequence, i64 windows) {
  std::string text;
  random::Generator g(5, random::Stream::kSynthetic, 9, 0);
  for (i64 i = 0; i <= sequence * windows; ++i) {
    text += char('a' + g.below(26));
  }
  return open_text(folder.put("t.txt", text), {.sequence = sequence});
}

TEST(Sets, ManySamplesAtOnceEqualOneByOne) {
  const DataFolder folder;
  const auto text = some_text(folder, 16, 40);
  const std::shared_ptr<const Dataset> sets[] = {
      numbered(40, 5, 7, 3),
      numbered(40, 60, 40, 1),
      part_of(numbered(60, 4, 4, 1), 13, 40),
      augmented(numbered(40, 6, 6, 2), {.pad = 2, .flip = true}),
      text,
      masked(text, {.probability = 0.4, .mask_token = 3, .vocabulary = 256}),
      synthetic_images({.size = 40, .shape = {4, 4, 3}}),
      synthetic_tokens({.size = 40, .shape = {12}}),
  };
  for (const auto& set : sets) {
    std::vector<SampleKey> keys;
    for (const i64 i : {7, 7, 0, 39, 12, 38, 1}) {
      keys.push_back({.index = i, .epoch = 0, .seed = 3});
    }
    Sample rows;
    std::vector<std::byte*> pointers;
    for (const Field& f : set->fields()) {
      rows.emplace_back(std::size_t(f.bytes()) * keys.size());
      pointers.push_back(rows.back().data());
    }
    set->load_many(keys, pointers);
    for (std::size_t k = 0; k < keys.size(); ++k) {
      const Sample one = sample_of(*set, keys[k].index);
      for (std::size_t f = 0; f < rows.size(); ++f) {
        const auto at = rows[f].begin() + std::ptrdiff_t(k * one[f].size());
        EXPECT_TRUE(std::equal(one[f].begin(), one[f].end(), at))
            << set->describe(keys[k].index) << " field " << f;
      }
    }
  }
}

TEST(Sets, ColumnsMustAgree) {
  std::vector<MemorySet::Column> columns;
  columns.push_back({{"a", DType::u8, {2}}, std::vector<std::byte>(10)});
  columns.push_back({{"b", DType::u8, {3}}, std::vector<std::byte>(12)});
  expect_mentions(error_of<DataError>([&] { MemorySet("set", columns); }), "5 rows of \"a\" and 4");
  columns[1].rows.resize(14);
  expect_mentions(error_of<DataError>([&] { MemorySet("set", columns); }), "whole rows of 3 bytes");
}

TEST(Sets, APartNamesAndKeysTheSamplesOfTheWhole) {
  const auto whole = augmented(numbered(30, 6, 6, 1), {.pad = 2, .flip = true});
  const auto part = part_of(whole, 10, 5);
  EXPECT_EQ(part->size(), 5);
  EXPECT_EQ(part->describe(2), whole->describe(12));
  EXPECT_EQ(sample_of(*part, 2, 4), sample_of(*whole, 12, 4));
}

// Pad by zeros, crop, flip: pixel by pixel as the words say it.
TEST(Augmented, EveryResultIsACropOfThePaddedImage) {
  const i64 h = 5;
  const i64 w = 4;
  const i64 c = 3;
  for (const i64 pad : {0, 1, 3, 7}) {
    const auto set = augmented(numbered(3, h, w, c), {.pad = pad, .flip = true});
    const Sample source = sample_of(*numbered(3, h, w, c), 1);
    std::set<std::vector<std::byte>> possible;
    for (i64 dy = -pad; dy <= pad; ++dy) {
      for (i64 dx = -pad; dx <= pad; ++dx) {
        for (const bool flip : {false, true}) {
          std::vector<std::byte> image;
          for (i64 y = 0; y < h; ++y) {
            for (i64 x = 0; x < w; ++x) {
              for (i64 k = 0; k < c; ++k) {
                const i64 from_y = y + dy;
                const i64 from_x = (flip ? w - 1 - x : x) + dx;
                const bool inside = from_y >= 0 && from_y < h && from_x >= 0 && from_x < w;
                image.push_back(inside ? source[0][std::size_t((from_y * w + from_x) * c + k)]
                                       : std::byte{0});
              }
            }
          }
          possible.insert(image);
        }
      }
    }
    std::set<std::vector<std::byte>> seen;
    for (i64 epoch = 0; epoch < 1000; ++epoch) {
      const Sample a = sample_of(*set, 1, epoch);
      EXPECT_EQ(a, sample_of(*set, 1, epoch));
      EXPECT_EQ(a[1], source[1]);
      ASSERT_TRUE(possible.count(a[0]) == 1) << "pad " << pad << " epoch " << epoch;
      seen.insert(a[0]);
    }
    // Up to 450 ways to draw one, most of which come up in 1,000.
    EXPECT_GT(seen.size(), possible.size() * 7 / 10) << pad;
  }
}

TEST(Augmented, SamplesAndEpochsAreIndependent) {
  const auto set = augmented(numbered(512, 9, 9, 1), {.pad = 4});
  // The place of the crop, told from a pixel in the middle; 81 places.
  const auto place = [&](i64 index, i64 epoch) {
    const auto plain = sample_of(*numbered(512, 9, 9, 1), index)[0];
    const auto moved = sample_of(*set, index, epoch)[0];
    for (std::size_t i = 0; i < 81; ++i) {
      if (plain[i] == moved[40]) {
        return int(i);
      }
    }
    return -1;
  };
  int same_epoch = 0;
  int same_sample = 0;
  std::vector<int> first;
  std::vector<int> second;
  for (i64 i = 0; i < 60; ++i) {
    first.push_back(place(i, 0));
    second.push_back(place(i, 1));
    same_epoch += first.back() == second.back() ? 1 : 0;
    same_sample += i > 0 && first[std::size_t(i)] == first[std::size_t(i) - 1] ? 1 : 0;
  }
  // One in 81 by chance.
  EXPECT_LT(same_epoch, 8);
  EXPECT_LT(same_sample, 8);
  EXPECT_GT(std::set<int>(first.begin(), first.end()).size(), 25u);
}

TEST(Augmented, NeedsImagesOfBytes) {
  const auto tokens = synthetic_tokens({.size = 4, .shape = {8}});
  EXPECT_THROW((void)augmented(tokens, {.flip = true}), ConfigError);
  EXPECT_EQ(augmented(tokens, {}), tokens);
}

TEST(Masked, MasksTheSameTokensForTheSameKeyOnly) {
  const DataFolder folder;
  const auto set =
      masked(open_text(folder.put("t.txt", std::string(5000, 'a')), {.sequence = 1000}),
             {.probability = 0.15, .mask_token = 256, .vocabulary = 257});
  const Sample a = sample_of(*set, 1, 0);
  EXPECT_EQ(a, sample_of(*set, 1, 0));
  EXPECT_NE(a, sample_of(*set, 1, 1));
  EXPECT_NE(a[1], sample_of(*set, 2, 0)[1]);
  const auto input = values_of<std::int32_t>(a[0]);
  const auto target = values_of<std::int32_t>(a[1]);
  EXPECT_EQ(values_of<std::int32_t>(a[2])[0], 1000);
  int targets = 0;
  int masks = 0;
  int other = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(target[i] == -100 || target[i] == 'a');
    EXPECT_TRUE(target[i] != -100 || input[i] == 'a');
    targets += target[i] != -100 ? 1 : 0;
    masks += input[i] == 256 ? 1 : 0;
    other += input[i] != 256 && input[i] != 'a' ? 1 : 0;
  }
  EXPECT_NEAR(targets, 150, 45);
  EXPECT_NEAR(masks, 120, 45);
  EXPECT_NEAR(other, 15, 14);
  std::byte* pointers[] = {const_cast<std::byte*>(a[0].data()), const_cast<std::byte*>(a[1].data()),
                           const_cast<std::byte*>(a[2].data())};
  EXPECT_EQ(set->targets(pointers), targets);
}

TEST(Masked, TheEdgesOfTheProbabilityAreMeant) {
  const DataFolder folder;
  const auto text = some_text(folder, 32, 8);
  for (const auto& [probability, expected] : {std::pair{0.0, 0}, std::pair{1.0, 32}}) {
    const auto set = masked(text, {.probability = probability, .mask_token = 0, .vocabulary = 256});
    const auto target = values_of<std::int32_t>(sample_of(*set, 3)[1]);
    EXPECT_EQ(32 - std::count(target.begin(), target.end(), -100), expected);
  }
  EXPECT_THROW((void)masked(text, {.probability = 1.5}), ConfigError);
  EXPECT_THROW((void)masked(text, {.mask_token = 256, .vocabulary = 256}), ConfigError);
}

TEST(Synthetic, IsReproducibleAndItsLabelsAreInRange) {
  for (const Shape& shape : {Shape{6, 6, 3}, Shape{4, 4, 4, 1}}) {
    const auto set = synthetic_images({.size = 50, .classes = 4, .shape = shape});
    EXPECT_EQ(set->fields()[0].name, shape.rank() == 4 ? "volume" : "image");
    std::map<std::int64_t, int> counts;
    for (i64 i = 0; i < 50; ++i) {
      const Sample a = sample_of(*set, i);
      EXPECT_EQ(a, sample_of(*set, i));
      const std::int64_t label = values_of<std::int64_t>(a[1])[0];
      ASSERT_TRUE(label >= 0 && label < 4);
      ++counts[label];
    }
    EXPECT_EQ(counts.size(), 4u);
  }
  const auto tokens = synthetic_tokens({.size = 9, .classes = 17, .shape = {20}});
  const Sample t = sample_of(*tokens, 4);
  const auto input = values_of<std::int32_t>(t[0]);
  const auto target = values_of<std::int32_t>(t[1]);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(input[i] >= 0 && input[i] < 17);
    EXPECT_TRUE(i == 0 || input[i] == target[i - 1]);
  }
}

TEST(Synthetic, WorkIsCountedOnTheThreadsOwnClock) {
  const auto set = synthetic_images({.size = 4, .shape = {2, 2, 1}, .cpu_seconds = 0.02});
  const auto spent = [&] {
    timespec a{};
    timespec b{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    (void)sample_of(*set, 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    return double(b.tv_sec - a.tv_sec) + double(b.tv_nsec - a.tv_nsec) * 1e-9;
  };
  EXPECT_GE(spent(), 0.02);
  EXPECT_FALSE(set->cheap());
}

TEST(Synthetic, ImpossibleOptionsAreRefused) {
  const Shape shape = {4, 4, 1};
  EXPECT_THROW((void)synthetic_images({.size = 0, .shape = shape}), ConfigError);
  EXPECT_THROW((void)synthetic_images({.classes = 0, .shape = shape}), ConfigError);
  EXPECT_THROW((void)synthetic_images({.shape = shape, .cpu_seconds = -1}), ConfigError);
  EXPECT_THROW((void)synthetic_images({.shape = shape, .jitter = 2}), ConfigError);
  EXPECT_THROW((void)synthetic_images({.shape = {4, 0, 1}}), ConfigError);
  EXPECT_THROW((void)synthetic_images({.shape = {4}}), Error);
  EXPECT_THROW((void)synthetic_tokens({.shape = {4, 4}}), Error);
}

}  // namespace
}  // namespace penstock::data
