// Public formats: read right, and refused with the file's name when they lie.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <memory>

#include "data/formats.h"
#include "tests/data_helpers.h"

namespace penstock::data {
namespace {

std::string big_endian(std::uint32_t v) {
  return {char(v >> 24), char(v >> 16), char(v >> 8), char(v)};
}

std::string images_header(std::uint32_t n, std::uint32_t h, std::uint32_t w) {
  return big_endian(2051) + big_endian(n) + big_endian(h) + big_endian(w);
}
std::string images(int n, int h, int w) {
  std::string s = images_header(std::uint32_t(n), std::uint32_t(h), std::uint32_t(w));
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

TEST(Idx, PlainAndGzipAndBothSpellingsAreRead) {
  for (const std::string dot : {"-", "."}) {
    for (const bool gzip : {false, true}) {
      const DataFolder folder;
      const auto put = [&](const std::string& name, const std::string& bytes) {
        folder.put(name + (gzip ? ".gz" : ""), gzip ? gzipped(bytes) : bytes);
      };
      put("train-images" + dot + "idx3-ubyte", images(5, 3, 4));
      put("train-labels" + dot + "idx1-ubyte", labels(5));
      const auto set = open_mnist(folder.path(), true);
      EXPECT_EQ(set->size(), 5);
      EXPECT_EQ(set->fields()[0].shape, (Shape{3, 4, 1}));
      const Sample sample = sample_of(*set, 2);
      EXPECT_EQ(sample[0][0], std::byte((2 * 12 * 7) & 255));
      EXPECT_EQ(values_of<std::int64_t>(sample[1])[0], 2);
      expect_mentions(error_of<DataError>([&] { (void)open_mnist(folder.path(), false); }),
                      "t10k-images");
    }
  }
}

TEST(Idx, LiesAreRefusedWithTheFilesName) {
  const DataFolder folder;
  // The message, or "" when the files are accepted.
  const auto refusal = [&](const std::string& i, const std::string& l) {
    try {
      (void)open_idx(folder.put("i", i), folder.put("l", l), 10);
      return std::string();
    } catch (const DataError& e) {
      expect_mentions(e.what(), folder.path());
      return std::string(e.what());
    }
  };
  const std::string i = images(5, 3, 4);
  const std::string l = labels(5);
  EXPECT_EQ(refusal(i, l), "");
  const std::string wrong[] = {"",
                               i.substr(0, 10),
                               i.substr(0, 16),
                               i.substr(0, i.size() - 1),
                               i + "x",
                               l,
                               images_header(0, 3, 4),
                               images_header(5, 0, 4),
                               images_header(5, 3, 0),
                               images_header(0xFFFFFFFF, 28, 28),
                               images_header(1, 65536, 65536),
                               images_header(60000, 28, 28) + std::string(100, 'x')};
  for (const std::string& bytes : wrong) {
    EXPECT_NE(refusal(bytes, l), "") << bytes.size();
    EXPECT_NE(refusal(gzipped(bytes), l), "") << bytes.size();
  }
  for (const std::string& bytes :
       {std::string(), l.substr(0, 4), l.substr(0, l.size() - 1), l + "x", i}) {
    EXPECT_NE(refusal(i, bytes), "") << bytes.size();
  }
  expect_mentions(refusal(i, labels(4)), "5 images");
  expect_mentions(refusal(std::string(2, '\0') + "\x0d\x03" + i.substr(4), l), "not bytes");
  expect_mentions(refusal(i, l.substr(0, l.size() - 1) + char(10)), "label 10 of sample 4");
}

TEST(Idx, ADamagedEndOfACompressedFileIsNoticed) {
  const DataFolder folder;
  const std::string good = gzipped(images(200, 5, 5));
  const std::string l = folder.put("l", labels(200));
  const auto refusal = [&](const std::string& bytes) {
    return error_of<DataError>([&] { (void)open_idx(folder.put("i.gz", bytes), l); });
  };
  EXPECT_EQ(open_idx(folder.put("i.gz", good), l)->size(), 200);
  // All the data are there in the last two: only the checksum or the length behind them is not.
  expect_mentions(refusal(good.substr(0, good.size() / 2)), "damaged");
  expect_mentions(refusal(good.substr(0, good.size() - 3)), "damaged");
  std::string checksum = good;
  checksum[checksum.size() - 6] = char(checksum[checksum.size() - 6] ^ 1);
  expect_mentions(refusal(checksum), "damaged");
}

TEST(Idx, FashionMnistIsRead) {
  const std::string folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) {
    GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  }
  const auto set = open_mnist(folder, false);
  ASSERT_EQ(set->size(), 10'000);
  std::map<std::int64_t, int> counts;
  for (i64 i = 0; i < set->size(); ++i) {
    ++counts[values_of<std::int64_t>(sample_of(*set, i)[1])[0]];
  }
  ASSERT_EQ(counts.size(), 10u);
  for (const auto& [label, count] : counts) {
    EXPECT_EQ(count, 1000) << label;
  }
}

// A record with pixel i mod 256 at place i of its planes.
std::string record(const std::string& label_bytes) {
  std::string r = label_bytes;
  for (int i = 0; i < 3072; ++i) {
    r += char(i % 256 + i / 1024);
  }
  return r;
}

TEST(Cifar, PlanesBecomePixels) {
  const DataFolder folder;
  folder.put("test_batch.bin", record({3}) + record({7}));
  const auto set = open_cifar(folder.path(), false, 10);
  EXPECT_EQ(set->size(), 2);
  const Sample sample = sample_of(*set, 1);
  EXPECT_EQ(values_of<std::int64_t>(sample[1])[0], 7);
  for (const int pixel : {0, 1, 31, 32, 1000}) {
    for (int c = 0; c < 3; ++c) {
      EXPECT_EQ(sample[0][std::size_t(pixel * 3 + c)], std::byte((pixel + c) % 256)) << pixel << c;
    }
  }
}

TEST(Cifar, HundredClassesHaveTwoLabelBytes) {
  const DataFolder folder;
  std::filesystem::create_directory(folder / "cifar-100-binary");
  folder.put("cifar-100-binary/train.bin", record({7, 42}));
  const auto set = open_cifar(folder.path(), true, 100);
  const Sample sample = sample_of(*set, 0);
  EXPECT_EQ(values_of<std::int64_t>(sample[1])[0], 42);
  EXPECT_EQ(sample[0][0], std::byte(0));
  EXPECT_EQ(sample[0][31 * 3], std::byte(31));
}

TEST(Cifar, BrokenFilesAreNamed) {
  const DataFolder folder;
  const auto refusal = [&] {
    return error_of<DataError>([&] { (void)open_cifar(folder.path(), true, 10); });
  };
  for (int i = 1; i <= 5; ++i) {
    folder.put("data_batch_" + std::to_string(i) + ".bin", record({1}));
  }
  EXPECT_EQ(open_cifar(folder.path(), true, 10)->size(), 5);
  folder.put("data_batch_3.bin", record({1}).substr(1));
  expect_mentions(refusal(), "data_batch_3.bin");
  folder.put("data_batch_3.bin", "");
  expect_mentions(refusal(), "data_batch_3.bin");
  folder.put("data_batch_3.bin", record({10}));
  expect_mentions(refusal(), "data_batch_3.bin: label 10");
  std::filesystem::remove(folder / "data_batch_3.bin");
  expect_mentions(refusal(), "data_batch_3.bin");
}

std::string words(int first, int count) {
  std::string s;
  for (int i = first; i < first + count; ++i) {
    s += char(i & 255);
    s += char(i >> 8);
  }
  return s;
}
std::string shard_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string header(1024, '\0');
  const std::int32_t fields[3] = {magic, version, count};
  std::memcpy(header.data(), fields, sizeof fields);
  return header;
}

TEST(Tokens, WindowsRunOverShardsAndTargetsAreShifted) {
  const DataFolder folder;
  const std::vector<std::string> files = {
      folder.put("a.bin", words(256, 13)), folder.put("empty.bin", ""),
      folder.put("one.bin", words(269, 1)),
      folder.put("b.bin", shard_header(20240520, 1, 19) + words(270, 19))};
  const auto set = open_tokens(files, {.sequence = 8});
  ASSERT_EQ(set->size(), 4);
  for (i64 w = 0; w < 4; ++w) {
    const Sample sample = sample_of(*set, w);
    const auto input = values_of<std::int32_t>(sample[0]);
    const auto target = values_of<std::int32_t>(sample[1]);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(input[std::size_t(i)], 256 + w * 8 + i);
      EXPECT_EQ(target[std::size_t(i)], 257 + w * 8 + i);
    }
  }
  expect_mentions(set->describe(2), "b.bin from token 2");
}

// floor((N - 1) / T) windows, and the last token is the last target.
TEST(Tokens, TheNumberOfWindowsLeavesATarget) {
  const DataFolder folder;
  const auto windows = [&](int tokens) {
    return open_tokens({folder.put("t.bin", words(0, tokens))}, {.sequence = 8})->size();
  };
  EXPECT_EQ(windows(9), 1);
  EXPECT_EQ(windows(16), 1);
  EXPECT_EQ(windows(17), 2);
  for (const int tokens : {0, 1, 8}) {
    expect_mentions(error_of<DataError>([&] { (void)windows(tokens); }), "expected at least 9");
  }
}

TEST(Tokens, LiesAreRefusedWithTheFilesName) {
  const DataFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    return error_of<DataError>(
        [&] { (void)open_tokens({folder.put("t.bin", bytes)}, {.sequence = 4}); });
  };
  expect_mentions(refusal(words(0, 20) + "x"), "t.bin: 41 bytes");
  expect_mentions(refusal(shard_header(20240520, 1, 17) + words(0, 16)), "17 tokens");
  expect_mentions(refusal(shard_header(20240520, 1, -1) + words(0, 16)), "-1 tokens");
  expect_mentions(refusal(shard_header(20240520, 2, 16) + words(0, 16)), "version 2");
  expect_mentions(refusal(shard_header(20240801, 7, 8) + words(0, 16)), "32 bits");
  expect_mentions(error_of<DataError>([&] { (void)open_tokens({folder / "none"}, {}); }), "none");
  expect_mentions(error_of<ConfigError>([&] { (void)open_tokens({}, {}); }), "data.train");
  const std::string good = folder.put("t.bin", words(0, 20));
  for (const i64 t : {i64{0}, i64{-3}, i64{1} << 40}) {
    expect_mentions(error_of<ConfigError>([&] { (void)open_tokens({good}, {.sequence = t}); }),
                    "data.sequence");
  }
}

TEST(Tokens, AnIdOutsideTheVocabularyIsNamedWithItsPlace) {
  const DataFolder folder;
  const auto set =
      open_tokens({folder.put("t.bin", words(50'250, 12))}, {.sequence = 4, .vocabulary = 50'257});
  (void)sample_of(*set, 0);
  const std::string message = error_of<DataError>([&] { (void)sample_of(*set, 1); });
  expect_mentions(message, "t.bin: token 50258 at 8");
  expect_mentions(message, "50257");
}

TEST(Tokens, AFileThatShrinksIsAnErrorNotACrash) {
  const DataFolder folder;
  const std::string file = folder.put("t.bin", words(0, 100'000));
  const auto set = open_tokens({file}, {.sequence = 64});
  (void)sample_of(*set, 1500);
  std::filesystem::resize_file(file, 1000);
  (void)sample_of(*set, 0);
  expect_mentions(error_of<DataError>([&] { (void)sample_of(*set, 1500); }), "shrunk");
}

TEST(Tokens, SpecialFilesAreRefusedWithoutWaiting) {
  const DataFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  for (const std::string& path : {folder / "fifo", folder.path(), std::string("/dev/zero")}) {
    expect_mentions(error_of<DataError>([&] { (void)open_tokens({path}, {}); }), "regular");
  }
}

TEST(Text, TheEndIsKeptForValidation) {
  const DataFolder folder;
  const std::string file = folder.put("t.txt", std::string(990, 'a') + std::string(110, 'b'));
  const auto train = open_text(file, {.sequence = 10, .vocabulary = 256, .end = 0.9});
  const auto rest = open_text(file, {.sequence = 10, .vocabulary = 256, .begin = 0.9});
  EXPECT_EQ(train->size(), 98);
  EXPECT_EQ(rest->size(), 10);
  for (i64 i = 0; i < train->size(); ++i) {
    EXPECT_EQ(values_of<std::int32_t>(sample_of(*train, i)[1])[9], 'a');
  }
  for (i64 i = 0; i < rest->size(); ++i) {
    EXPECT_EQ(values_of<std::int32_t>(sample_of(*rest, i)[0])[0], 'b');
  }
  for (const TokenOptions& o : {TokenOptions{.begin = -0.1}, TokenOptions{.end = 1.1},
                                TokenOptions{.begin = 0.7, .end = 0.3}}) {
    EXPECT_THROW((void)open_text(file, o), ConfigError);
  }
  // Enough to train on, too little to validate with.
  expect_mentions(
      error_of<DataError>([&] { (void)open_text(file, {.sequence = 200, .begin = 0.9}); }),
      "110 tokens of 1100");
}

}  // namespace
}  // namespace penstock::data
