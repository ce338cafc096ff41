// Public formats: read right, and refused with the file's name when they lie.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "data/formats.h"
#include "data/memory_set.h"
#include "framework/core/check.h"
#include "tests/program.h"

namespace penstock::data {
namespace {

using program::TemporaryFolder;

std::string big_endian(std::uint32_t v) {
  return {char(v >> 24), char(v >> 16), char(v >> 8), char(v)};
}

void write(const std::string& path, const std::string& bytes, bool gzip = false) {
  if (gzip) {
    gzFile f = gzopen(path.c_str(), "wb");
    gzwrite(f, bytes.data(), unsigned(bytes.size()));
    gzclose(f);
  } else {
    std::ofstream(path, std::ios::binary) << bytes;
  }
}

std::string images(int n, int h, int w) {
  std::string s = big_endian(2051) + big_endian(std::uint32_t(n)) + big_endian(std::uint32_t(h)) +
                  big_endian(std::uint32_t(w));
  for (int i = 0; i < n * h * w; ++i) {
    s += char(i * 7);
  }
  return s;
}
std::string labels(int n) {
  std::string s = big_endian(2049) + big_endian(std::uint32_t(n));
  for (int i = 0; i < n; ++i) {
    s += char(i % 10);
  }
  return s;
}

std::vector<std::vector<std::byte>> load(const Dataset& set, i64 index, i64 epoch = 0) {
  std::vector<std::vector<std::byte>> fields;
  std::vector<std::byte*> pointers;
  for (const Field& f : set.fields()) {
    fields.emplace_back(std::size_t(f.bytes()));
  }
  for (auto& f : fields) {
    pointers.push_back(f.data());
  }
  set.load({.index = index, .epoch = epoch, .seed = 3}, {}, pointers);
  return fields;
}

TEST(Idx, ReadsPlainAndGzipAlike) {
  const TemporaryFolder folder;
  for (const bool gzip : {false, true}) {
    const std::string end = gzip ? ".gz" : "";
    write(folder / ("train-images-idx3-ubyte" + end), images(5, 3, 4), gzip);
    write(folder / ("train-labels-idx1-ubyte" + end), labels(5), gzip);
    const auto set = open_mnist(folder.path(), true);
    EXPECT_EQ(set->size(), 5);
    EXPECT_EQ(set->fields()[0].shape, (Shape{3, 4, 1}));
    const auto sample = load(*set, 2);
    EXPECT_EQ(sample[0][0], std::byte((2 * 12 * 7) & 255));
    std::int64_t label = 0;
    std::memcpy(&label, sample[1].data(), 8);
    EXPECT_EQ(label, 2);
    std::filesystem::remove(folder / ("train-images-idx3-ubyte" + end));
  }
}

TEST(Idx, LiesAreRefusedWithTheFilesName) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& i, const std::string& l, bool gzip = false) {
    write(folder / "i", i, gzip);
    write(folder / "l", l, gzip);
    try {
      (void)open_idx(folder / "i", folder / "l", 10);
      return std::string("accepted");
    } catch (const DataError& e) {
      return std::string(e.what()).find(folder.path()) != std::string::npos ? std::string("refused")
                                                                             : std::string(e.what());
    }
  };
  const std::string i = images(5, 3, 4);
  const std::string l = labels(5);
  EXPECT_EQ(refused(i, l), "accepted");
  EXPECT_EQ(refused(i.substr(0, 10), l), "refused");
  EXPECT_EQ(refused(i.substr(0, i.size() - 1), l), "refused");
  EXPECT_EQ(refused(i + "x", l), "refused");
  EXPECT_EQ(refused(i, labels(4)), "refused");
  EXPECT_EQ(refused(l, i), "refused");
  EXPECT_EQ(refused("", ""), "refused");
  // A header that asks for far more than the file holds must not allocate it.
  EXPECT_EQ(refused(big_endian(2051) + big_endian(0x7fffffff) + big_endian(16000) + big_endian(16000), l), "refused");
  EXPECT_EQ(refused(big_endian(2051) + big_endian(0x7fffffff) + big_endian(28) + big_endian(28), l, true), "refused");
  std::string bad = l;
  bad.back() = char(10);
  EXPECT_EQ(refused(i, bad), "refused");
  EXPECT_THROW((void)open_mnist(folder / "nowhere", true), DataError);
}

TEST(Cifar, PlanesBecomePixels) {
  const TemporaryFolder folder;
  std::string record(1, char(7));
  for (int c = 0; c < 3; ++c) {
    for (int p = 0; p < 1024; ++p) {
      record += char(c * 50 + p % 40);
    }
  }
  write(folder / "test_batch.bin", record + record);
  const auto set = open_cifar(folder.path(), false, 10);
  EXPECT_EQ(set->size(), 2);
  const auto sample = load(*set, 1);
  EXPECT_EQ(sample[0][0], std::byte(0));
  EXPECT_EQ(sample[0][1], std::byte(50));
  EXPECT_EQ(sample[0][5], std::byte(101));
  write(folder / "test_batch.bin", record.substr(1));
  EXPECT_THROW((void)open_cifar(folder.path(), false, 10), DataError);
  record[0] = char(10);
  write(folder / "test_batch.bin", record);
  EXPECT_THROW((void)open_cifar(folder.path(), false, 10), DataError);
}

TEST(Tokens, WindowsRunOverShardsAndTargetsAreShifted) {
  const TemporaryFolder folder;
  std::string a;
  std::string b;
  for (int i = 0; i < 30; ++i) {
    std::string& to = i < 13 ? a : b;
    to += char(i);
    to += char(1);
  }
  std::string header(1024, '\0');
  const std::int32_t words[3] = {20240520, 1, 17};
  std::memcpy(header.data(), words, sizeof words);
  write(folder / "a.bin", a);
  write(folder / "b.bin", header + b);
  const auto set = open_tokens({folder / "a.bin", folder / "b.bin"}, {.sequence = 8});
  EXPECT_EQ(set->size(), 3);
  const auto sample = load(*set, 1);
  for (int i = 0; i < 8; ++i) {
    std::int32_t input = 0;
    std::int32_t target = 0;
    std::memcpy(&input, sample[0].data() + 4 * i, 4);
    std::memcpy(&target, sample[1].data() + 4 * i, 4);
    EXPECT_EQ(input, 256 + 8 + i);
    EXPECT_EQ(target, 256 + 9 + i);
  }
  EXPECT_THROW((void)load(*open_tokens({folder / "a.bin"}, {.sequence = 4, .vocabulary = 100}), 0), DataError);
  write(folder / "c.bin", header + b.substr(2));
  EXPECT_THROW((void)open_tokens({folder / "c.bin"}, {.sequence = 4}), DataError);
  write(folder / "d.bin", "abc");
  EXPECT_THROW((void)open_tokens({folder / "d.bin"}, {.sequence = 1}), DataError);
  EXPECT_THROW((void)open_tokens({folder / "a.bin"}, {.sequence = 1000}), DataError);
}

TEST(Text, TheEndIsKeptForValidation) {
  const TemporaryFolder folder;
  write(folder / "t.txt", std::string(1000, 'a') + std::string(100, 'b'));
  const auto train = open_text(folder / "t.txt", {.sequence = 10, .end = 0.9});
  const auto rest = open_text(folder / "t.txt", {.sequence = 10, .begin = 0.9});
  EXPECT_EQ(train->size(), 98);
  EXPECT_EQ(rest->size(), 10);
}

TEST(Masked, MasksTheSameTokensForTheSameEpochOnly) {
  const TemporaryFolder folder;
  write(folder / "t.txt", std::string(5000, 'a'));
  const auto set = masked(open_text(folder / "t.txt", {.sequence = 1000}),
                          {.probability = 0.15, .mask_token = 256, .vocabulary = 257});
  const auto a = load(*set, 1, 0);
  EXPECT_EQ(a, load(*set, 1, 0));
  EXPECT_NE(a, load(*set, 1, 1));
  int targets = 0;
  int masks = 0;
  for (int i = 0; i < 1000; ++i) {
    std::int32_t input = 0;
    std::int32_t target = 0;
    std::memcpy(&input, a[0].data() + 4 * i, 4);
    std::memcpy(&target, a[1].data() + 4 * i, 4);
    targets += target != -100 ? 1 : 0;
    masks += input == 256 ? 1 : 0;
    EXPECT_TRUE(target == -100 || target == 'a');
    EXPECT_TRUE(target != -100 || input == 'a');
  }
  EXPECT_NEAR(targets, 150, 45);
  EXPECT_NEAR(masks, 120, 45);
}

TEST(Augmented, IsAFunctionOfTheKeyAndMovesPixels) {
  std::vector<std::byte> pixels(8 * 8);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = std::byte(i + 1);
  }
  std::vector<MemorySet::Column> columns;
  columns.push_back({{"image", DType::u8, {8, 8, 1}}, pixels});
  const auto set = augmented(std::make_shared<MemorySet>("m", columns), {.pad = 2, .flip = true});
  std::set<std::vector<std::byte>> seen;
  for (i64 epoch = 0; epoch < 60; ++epoch) {
    const auto a = load(*set, 0, epoch)[0];
    EXPECT_EQ(a, load(*set, 0, epoch)[0]);
    seen.insert(a);
  }
  EXPECT_GT(seen.size(), 20u);   // of 50 possible
  EXPECT_LE(seen.size(), 50u);
}

TEST(Synthetic, IsReproducibleAndItsLabelsAreInRange) {
  const auto set = synthetic_images({.size = 50, .classes = 4, .shape = {6, 6, 3}});
  std::map<std::int64_t, int> counts;
  for (i64 i = 0; i < 50; ++i) {
    const auto a = load(*set, i);
    EXPECT_EQ(a, load(*set, i));
    std::int64_t label = -1;
    std::memcpy(&label, a[1].data(), 8);
    ASSERT_TRUE(label >= 0 && label < 4);
    ++counts[label];
  }
  EXPECT_EQ(counts.size(), 4u);
}

}  // namespace
}  // namespace penstock::data
