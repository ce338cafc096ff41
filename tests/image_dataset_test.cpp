// Folders, tar shards, readers, the sample cache, and the data set made of them.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "data/image/image_dataset.h"
#include "data/image/name.h"
#include "data/image/tar.h"
#include "framework/core/check.h"
#include "framework/core/machine.h"
#include "tests/image_files.h"

namespace penstock::data::image {
namespace {

using namespace penstock::testing;
namespace fs = std::filesystem;

const TransformOptions kSmall{.geometry = Geometry::kStretch, .size = 8};

Bytes text_bytes(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

Bytes small_jpeg(std::uint8_t level = 100) {
  return encode_jpeg(flat_picture(16, 12, {level, level, level}));
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

struct Sample {
  std::vector<std::uint8_t> image;
  i64 label = -1;
  bool operator==(const Sample&) const = default;
};

Sample load(const Dataset& dataset, const SampleKey& key) {
  Sample out;
  out.image.resize(std::size_t(dataset.fields()[0].bytes()));
  std::byte* const fields[] = {reinterpret_cast<std::byte*>(out.image.data()),
                               reinterpret_cast<std::byte*>(&out.label)};
  FetchBuffer raw;
  dataset.fetch(key, raw);
  dataset.load(key, raw, fields);
  return out;
}

// ---- folders ------------------------------------------------------------------------------------

// Case 80.
TEST(ImageFolder, HiddenEntriesAreIgnoredAndClassesSortedByBytes) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "b/1.jpg", small_jpeg());
  write_bytes(folder.path() / "a/2.JPEG", small_jpeg());
  write_bytes(folder.path() / "a/10.png", encode_png(2, 2, make_picture(2, 2).data));
  write_bytes(folder.path() / "a/deep/er/3.jpg", small_jpeg());
  write_bytes(folder.path() / "a/.hidden.jpg", small_jpeg());
  write_bytes(folder.path() / "a/notes.txt", text_bytes("x"));
  write_bytes(folder.path() / "B/1.jpg", small_jpeg());
  write_bytes(folder.path() / ".ipynb_checkpoints/1.jpg", small_jpeg());
  write_bytes(folder.path() / "README", text_bytes("x"));
  const FolderIndex index = FolderIndex::scan(folder.path().string());
  EXPECT_EQ(index.class_names(), (std::vector<std::string>{"B", "a", "b"}));
  ASSERT_EQ(index.size(), 5);
  std::vector<std::string> paths;
  std::vector<i64> labels;
  for (i64 i = 0; i < index.size(); ++i) {
    Place place;
    index.place(i, place);
    paths.push_back(place.path.substr(folder.path().string().size() + 1));
    labels.push_back(index.label(i));
  }
  EXPECT_EQ(paths, (std::vector<std::string>{"B/1.jpg", "a/10.png", "a/2.JPEG", "a/deep/er/3.jpg",
                                             "b/1.jpg"}));
  EXPECT_EQ(labels, (std::vector<i64>{0, 1, 1, 1, 2}));
}

// Case 80.
TEST(ImageFolder, AnEmptyClassIsAnErrorNamingItUnlessAllowed) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "a/1.jpg", small_jpeg());
  write_bytes(folder.path() / "c/1.jpg", small_jpeg());
  fs::create_directories(folder.path() / "b");
  const std::string root = folder.path().string();
  EXPECT_TRUE(contains(message_of<DataError>([&] { FolderIndex::scan(root); }), "the class \"b\""));
  const FolderIndex index = FolderIndex::scan(root, {.allow_empty_classes = true});
  EXPECT_EQ(index.class_names().size(), 3U);
  EXPECT_EQ(index.label(0), 0);
  EXPECT_EQ(index.label(1), 2);
}

TEST(ImageFolder, RootsWithoutPicturesAreErrors) {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { FolderIndex::scan(root); }), "no class folders"));
  EXPECT_TRUE(contains(message_of<DataError>([&] { FolderIndex::scan(root + "/nowhere"); }),
                       "cannot be opened"));
  fs::create_directories(folder.path() / "a");
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { FolderIndex::scan(root, {.allow_empty_classes = true}); }),
      "holds no pictures"));
}

// Case 82.
TEST(ImageFolder, AnyBytesInNamesWork) {
  const TemporaryFolder folder;
  const fs::path root = folder.path() /
                        "my donn\xC3\xA9"
                        "es";
  const std::string odd[] = {"a b\nc.JPEG", "\xFF\xFE.jpg", std::string(251, 'x') + ".jpg",
                             "\"q\\.Png"};
  for (const std::string& name : odd) {
    // A PNG inside, whatever the extension says.
    write_bytes(root / "\xE3\x82\xAF\xE3\x83\xA9\xE3\x82\xB9 1" / name,
                encode_png(3, 3, flat_picture(3, 3, {9, 9, 9}).data));
  }
  const auto dataset = open_image_folder(root.string(), {}, {.transform = kSmall});
  ASSERT_EQ(dataset->size(), 4);
  for (i64 i = 0; i < 4; ++i) {
    EXPECT_EQ(load(*dataset, {.index = i}).image[0], 9);
    const std::string shown = dataset->describe(i);
    EXPECT_FALSE(contains(shown, "\n"));
    EXPECT_FALSE(contains(shown, "\xFF"));
  }
  EXPECT_EQ(printable("a\nb\"\\\xFF\x01\xC3\xA9\xC2\x85"),
            "a\\nb\\\"\\\\\\xff\\x01\xC3\xA9\\xc2\\x85");
}

TEST(ImageFolder, LinksInsideWorkAndOthersAreRefused) {
  const TemporaryFolder folder;
  const TemporaryFolder outside;
  const fs::path root = folder.path() / "root";
  write_bytes(root / "a/1.jpg", small_jpeg());
  write_bytes(outside.path() / "2.jpg", small_jpeg());
  // A neighbour whose name begins like the root's is outside.
  write_bytes(folder.path() / "rootless/3.jpg", small_jpeg());
  fs::create_symlink(root / "a/1.jpg", root / "a/inside.jpg");
  EXPECT_EQ(FolderIndex::scan(root.string()).size(), 2);
  for (const fs::path& target : {outside.path() / "2.jpg", folder.path() / "rootless/3.jpg"}) {
    fs::create_symlink(target, root / "a/out.jpg");
    const std::string message = message_of<DataError>([&] { FolderIndex::scan(root.string()); });
    EXPECT_TRUE(contains(message, "out.jpg")) << message;
    EXPECT_TRUE(contains(message, "leads out of")) << message;
    EXPECT_EQ(FolderIndex::scan(root.string(), {.allow_outside_links = true}).size(), 3);
    fs::remove(root / "a/out.jpg");
  }
  fs::create_directory_symlink(root, root / "a/loop");
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { FolderIndex::scan(root.string()); }), "leads back"));
  fs::remove(root / "a/loop");
  fs::create_symlink("self.jpg", root / "a/self.jpg");
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { FolderIndex::scan(root.string()); }), "leads nowhere"));
}

TEST(ImageFolder, PipesArePassedOverAndNeverBlock) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "a/1.jpg", small_jpeg());
  const std::string pipe = (folder.path() / "a/2.jpg").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(FolderIndex::scan(folder.path().string()).size(), 1);
  FetchBuffer buffer;
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { FileReader(1000).read(pipe, 0, Reader::kToEnd, buffer); }),
      "not a regular file"));
}

TEST(ImageFolder, TheFingerprintFollowsNamesAndClasses) {
  const auto make = [](std::string_view name, std::string_view klass) {
    FolderIndex index("r");
    index.begin_class(klass);
    index.add_file(name);
    index.add_file("z.jpg");
    index.finish();
    return index.fingerprint();
  };
  EXPECT_EQ(make("a.jpg", "c"), make("a.jpg", "c"));
  EXPECT_NE(make("a.jpg", "c"), make("b.jpg", "c"));
  EXPECT_NE(make("a.jpg", "c"), make("a.jpg", "d"));
}

TEST(ImageFolder, AMillionNamesTakeLessThan250BytesEach) {
  constexpr i64 kFiles = 1'000'000;
  const i64 before = machine::resident_memory();
  FolderIndex index("/data/imagenet/train");
  char name[64];
  for (i64 i = 0; i < kFiles; ++i) {
    if (i % 1000 == 0) {
      index.begin_class("n" + std::to_string(10'000'000 + i));
    }
    std::snprintf(name, sizeof name, "n%08lld_%lld.JPEG", static_cast<long long>(i / 1000),
                  static_cast<long long>(i));
    index.add_file(name);
  }
  index.finish();
  EXPECT_EQ(index.label(kFiles - 1), 999);
  EXPECT_LT(index.bytes(), 250 * kFiles);
  EXPECT_LT(machine::resident_memory() - before, 250 * kFiles);
}

// Opt-in: PENSTOCK_MILLION_FILES=FOLDER creates 10^6 empty files there (some minutes), scans them,
// and removes them.
TEST(ImageFolder, AMillionRealFiles) {
  const char* where = std::getenv("PENSTOCK_MILLION_FILES");
  if (where == nullptr) {
    GTEST_SKIP() << "set PENSTOCK_MILLION_FILES to a folder";
  }
  constexpr i64 kFiles = 1'000'000;
  const fs::path root = fs::path(where) / "penstock_million";
  for (i64 i = 0; i < kFiles; ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "class_%02lld/picture_%08lld.jpeg",
                  static_cast<long long>(i % 2), static_cast<long long>(i));
    if (i < 2) {
      fs::create_directories((root / name).parent_path());
    }
    std::ofstream(root / name);
  }
  const i64 before = machine::resident_memory();
  const FolderIndex index = FolderIndex::scan(root.string());
  std::printf("held %lld bytes a file, resident %lld\n",
              static_cast<long long>(index.bytes() / kFiles),
              static_cast<long long>((machine::resident_memory() - before) / kFiles));
  EXPECT_EQ(index.size(), kFiles);
  EXPECT_LT(machine::resident_memory() - before, 250 * kFiles);
  fs::remove_all(root);
}

// ---- tar ----------------------------------------------------------------------------------------

class TarWriter {
 public:
  TarWriter& add(const std::string& name, const Bytes& body, char type = '0') {
    std::string header(512, '\0');
    const auto put = [&header](std::size_t at, const std::string& text) {
      header.replace(at, text.size(), text);
    };
    put(0, name.substr(0, 100));
    put(100, "0000644");
    char size[13];
    std::snprintf(size, sizeof size, "%011llo", static_cast<unsigned long long>(body.size()));
    put(124, std::string(size, 12));
    put(257, std::string("ustar\00000", 8));
    header[156] = type;
    seal(header);
    const Bytes head = text_bytes(header);
    bytes_.insert(bytes_.end(), head.begin(), head.end());
    bytes_.insert(bytes_.end(), body.begin(), body.end());
    bytes_.resize((bytes_.size() + 511) / 512 * 512);
    return *this;
  }
  TarWriter& text(const std::string& name, std::string_view body, char type = '0') {
    return add(name, text_bytes(body), type);
  }
  static void seal(std::string& header) {
    header.replace(148, 8, "        ");
    unsigned sum = 0;
    for (const char c : header) {
      sum += std::uint8_t(c);
    }
    char text[9];
    std::snprintf(text, sizeof text, "%06o", sum);
    header.replace(148, 8, std::string(text, 6) + std::string("\0 ", 2));
  }
  Bytes open() const { return bytes_; }
  Bytes finish() const {
    Bytes out = bytes_;
    out.resize(out.size() + 1024);
    return out;
  }

 private:
  Bytes bytes_;
};

std::vector<TarMember> members_of(const Bytes& file) {
  std::vector<TarMember> members;
  const auto read = [&file](i64 offset, std::span<std::byte> to) {
    ASSERT_GE(offset, 0);
    ASSERT_LE(std::size_t(offset) + to.size(), file.size());
    std::memcpy(to.data(), file.data() + offset, to.size());
  };
  read_tar({.name = "t.tar", .bytes = i64(file.size()), .read = read},
           [&members](const TarMember& member) { members.push_back(member); });
  return members;
}

std::string tar_error(const Bytes& file) {
  return message_of<DataError>([&] { members_of(file); });
}

TEST(Tar, MembersAreListedWithTheirPlaces) {
  const Bytes file = TarWriter()
                         .text("dir/", "", '5')
                         .text("a.txt", "hello")
                         .text("long", std::string(150, 'p') + "/x.jpg" + '\0', 'L')
                         .text("cut", std::string(600, 'y'))
                         .text("pax", "31 path=other/name with blanks\n18 mtime=12345.25\n", 'x')
                         .text("short", "z")
                         .text("empty", "", '\0')
                         .finish();
  const auto members = members_of(file);
  ASSERT_EQ(members.size(), 4U);
  EXPECT_EQ(members[0].name, "a.txt");
  EXPECT_EQ(members[0].size, 5);
  EXPECT_EQ(std::memcmp(file.data() + members[0].offset, "hello", 5), 0);
  EXPECT_EQ(members[1].name, std::string(150, 'p') + "/x.jpg");
  EXPECT_EQ(members[1].size, 600);
  EXPECT_EQ(members[2].name, "other/name with blanks");
  EXPECT_EQ(char(file[std::size_t(members[2].offset)]), 'z');
  EXPECT_EQ(members[3].size, 0);
}

TEST(Tar, WhatCannotBeIndexedIsRefusedByName) {
  const std::pair<char, const char*> kinds[] = {{'1', "links"},   {'2', "links"}, {'3', "devices"},
                                                {'4', "devices"}, {'6', "pipes"}, {'S', "sparse"},
                                                {'Z', "unknown"}};
  for (const auto& [type, what] : kinds) {
    const std::string message = tar_error(TarWriter().text("evil.jpg", "", type).finish());
    EXPECT_TRUE(contains(message, "t.tar") && contains(message, "evil.jpg") &&
                contains(message, what))
        << message;
  }
  EXPECT_TRUE(contains(
      tar_error(TarWriter().text("pax", "22 GNU.sparse.major=1\n", 'x').text("s", "").finish()),
      "sparse"));
  EXPECT_TRUE(contains(tar_error(TarWriter().text("pax", "99 path=x\n", 'x').finish()), "pax"));
  EXPECT_TRUE(contains(tar_error(TarWriter().text("pax", "9 size=-1\n", 'x').finish()), "pax"));
  EXPECT_TRUE(
      contains(tar_error(TarWriter().text("l", std::string(5000, 'n'), 'L').text("s", "").finish()),
               "limit"));
}

// Case 76.
TEST(Tar, CutAndDamagedFilesAreRefused) {
  const TarWriter tar = TarWriter().text("a.jpg", std::string(2000, 'a')).text("b.jpg", "b");
  const Bytes file = tar.finish();
  EXPECT_EQ(members_of(file).size(), 2U);
  EXPECT_TRUE(contains(tar_error(tar.open()), "end mark"));
  for (std::size_t size = 0; size < tar.open().size(); size += 100) {
    EXPECT_NE(tar_error(Bytes(file.begin(), file.begin() + std::ptrdiff_t(size))), "") << size;
  }
  EXPECT_TRUE(contains(tar_error(Bytes(file.begin(), file.begin() + 1024)), "the file is cut"));
  Bytes bad = file;
  bad[3] = std::byte{'x'};
  EXPECT_TRUE(contains(tar_error(bad), "checksum"));
}

TEST(Tar, GiantSizesAreRefusedWithoutOverflow) {
  std::string header(512, '\0');
  header.replace(0, 5, "a.jpg");
  header[156] = '0';
  for (const std::string& size :
       {std::string("77777777777\0", 12),
        std::string("\x80\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 12),
        std::string("\x80\0\0\0\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 12),
        std::string("-0000000001\0", 12), std::string("99\0\0\0\0\0\0\0\0\0\0", 12)}) {
    header.replace(124, 12, size);
    TarWriter::seal(header);
    Bytes file = text_bytes(header);
    file.resize(4096);
    EXPECT_NE(tar_error(file), "");
  }
}

// ---- shards -------------------------------------------------------------------------------------

TEST(Shards, KeysPictureAndLabelMakeASample) {
  const TemporaryFolder folder;
  write_bytes(folder.path() / "1.tar",
              TarWriter()
                  .add("s/0001.JPG", small_jpeg(10))
                  .text("s/0001.cls", " 3\n")
                  .text("s/0001.txt", "a caption")
                  .text("s/0002.cls", "0")
                  .add("s/0002.png", encode_png(2, 2, flat_picture(2, 2, {20, 20, 20}).data))
                  .finish());
  write_bytes(folder.path() / "2.tar", TarWriter()
                                           .text("s/0001.json", R"({"label": 5, "w": 1})")
                                           .add("s/0001.jpeg", small_jpeg(30))
                                           .finish());
  write_bytes(folder.path() / ".3.tar", Bytes());
  const auto dataset =
      open_image_shards(list_shards(folder.path().string()), {}, {.transform = kSmall});
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_EQ(dataset->classes(), 6);
  EXPECT_TRUE(dataset->class_names().empty());
  const i64 labels[] = {3, 0, 5};
  for (i64 i = 0; i < 3; ++i) {
    const Sample sample = load(*dataset, {.index = i});
    EXPECT_EQ(sample.label, labels[i]);
    EXPECT_NEAR(sample.image[0], 10.0 * double(i + 1), 2);
  }
  EXPECT_TRUE(contains(dataset->describe(2), "2.tar:s/0001"));
}

TEST(Shards, FoldersNameClassesWhereThereAreNoLabels) {
  const TemporaryFolder folder;
  write_bytes(
      folder.path() / "1.tar",
      TarWriter().add("x/dog/1.jpg", small_jpeg()).add("x/cat/2.jpg", small_jpeg()).finish());
  write_bytes(folder.path() / "2.tar", TarWriter().add("x/ant/1.jpg", small_jpeg()).finish());
  const ShardIndex index = ShardIndex::scan(list_shards(folder.path().string()));
  EXPECT_EQ(index.class_names(), (std::vector<std::string>{"ant", "cat", "dog"}));
  EXPECT_EQ(index.label(0), 2);
  EXPECT_EQ(index.label(1), 1);
  EXPECT_EQ(index.label(2), 0);
  EXPECT_LT(index.bytes(), 3 * 250);
}

TEST(Shards, BrokenSamplesAreRefusedByName) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "1.tar").string();
  const auto error = [&](const TarWriter& tar) {
    write_bytes(path, tar.finish());
    return message_of<DataError>([&] { ShardIndex::scan({path}); });
  };
  const Bytes jpeg = small_jpeg();
  EXPECT_TRUE(contains(error(TarWriter().text("a.cls", "1")), "no .jpg"));
  EXPECT_TRUE(contains(error(TarWriter().add("a.jpg", jpeg)), "no .cls"));
  EXPECT_TRUE(contains(error(TarWriter().add("a.jpg", jpeg).text("a.cls", "one")), "class number"));
  EXPECT_TRUE(contains(error(TarWriter().add("a.jpg", jpeg).text("a.cls", "-1")), "class number"));
  EXPECT_TRUE(contains(error(TarWriter().add("a.jpg", jpeg).text("a.json", "[1,")), "\"label\""));
  EXPECT_TRUE(
      contains(error(TarWriter().add("a.jpg", jpeg).text("a.json", std::string(100'000, '['))),
               "\"label\""));
  EXPECT_TRUE(
      contains(error(TarWriter().add("a.jpg", jpeg).add("a.png", jpeg)), "already has a picture"));
  EXPECT_TRUE(contains(error(TarWriter()
                                 .add("a.jpg", jpeg)
                                 .text("a.cls", "1")
                                 .add("b.jpg", jpeg)
                                 .text("b.cls", "1")
                                 .add("a.jpg", jpeg)
                                 .text("a.cls", "1")),
                       "occurs twice"));
  EXPECT_TRUE(
      contains(error(TarWriter().add("x/a.jpg", jpeg).add("x/b.jpg", jpeg).text("x/b.cls", "1")),
               "another kind"));
  EXPECT_TRUE(contains(error(TarWriter().text("a.txt", "")), "no pictures"));
  // Names are labels: an absolute or climbing one opens nothing.
  EXPECT_EQ(error(TarWriter().add("../../etc/1.jpg", jpeg).add("/abs/2.jpg", jpeg)), "");
}

// Case 76.
TEST(Shards, AShardThatShrinksAfterIndexingIsAnErrorWithBothSizes) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "1.tar").string();
  write_bytes(path, TarWriter().add("c/1.jpg", small_jpeg()).finish());
  const auto dataset = open_image_shards({path}, {}, {.transform = kSmall});
  EXPECT_NO_THROW(load(*dataset, {}));
  ASSERT_EQ(::truncate(path.c_str(), 600), 0);
  const std::string message = message_of<DataError>([&] { load(*dataset, {}); });
  EXPECT_TRUE(contains(message, "1.tar") && contains(message, "600 bytes")) << message;
}

// ---- readers ------------------------------------------------------------------------------------

TEST(Readers, FilesAreReadWholeAndInParts) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "f").string();
  write_bytes(path, text_bytes("0123456789"));
  const FileReader reader(100);
  FetchBuffer buffer;
  reader.read(path, 0, Reader::kToEnd, buffer);
  EXPECT_EQ(buffer, text_bytes("0123456789"));
  reader.read(path, 3, 4, buffer);
  EXPECT_EQ(buffer, text_bytes("3456"));
  reader.read(path, 10, Reader::kToEnd, buffer);
  EXPECT_TRUE(buffer.empty());
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { reader.read(path, 8, 4, buffer); }), "10 bytes"));
  EXPECT_THROW(reader.read(path, 11, Reader::kToEnd, buffer), DataError);
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { FileReader(5).read(path, 0, Reader::kToEnd, buffer); }),
               "limit"));
  EXPECT_TRUE(
      contains(message_of<DataError>([&] { reader.read(path + "x", 0, Reader::kToEnd, buffer); }),
               "cannot be opened"));
  EXPECT_THROW(reader.read(folder.path().string(), 0, Reader::kToEnd, buffer), DataError);
}

TEST(Readers, TheThrottleModelKeepsRateLatencyAndConcurrency) {
  ThrottleModel rate({.bytes_per_second = 100});
  EXPECT_DOUBLE_EQ(rate.finish(0, 50), 0.5);
  EXPECT_DOUBLE_EQ(rate.finish(0, 50), 1.0);
  EXPECT_DOUBLE_EQ(rate.finish(10, 50), 10.5);
  ThrottleModel burst({.bytes_per_second = 100, .burst_bytes = 100});
  EXPECT_DOUBLE_EQ(burst.finish(0, 100), 0.0);
  EXPECT_DOUBLE_EQ(burst.finish(0, 100), 1.0);
  ThrottleModel slots({.latency_seconds = 1, .concurrency = 2});
  EXPECT_DOUBLE_EQ(slots.finish(0, 1), 1);
  EXPECT_DOUBLE_EQ(slots.finish(0, 1), 1);
  EXPECT_DOUBLE_EQ(slots.finish(0, 1), 2);
  EXPECT_DOUBLE_EQ(slots.finish(0, 1), 2);
  // Over any long time, what passes is the rate plus one burst.
  ThrottleModel both(
      {.bytes_per_second = 1000, .burst_bytes = 500, .latency_seconds = 0.01, .concurrency = 4});
  double last = 0;
  for (int i = 0; i < 1000; ++i) {
    last = std::max(last, both.finish(0, 100));
  }
  EXPECT_NEAR(last, (100'000.0 - 500) / 1000, 0.2);
}

TEST(Readers, WrappersComposeAndFailuresChooseTheSameFiles) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "f").string();
  write_bytes(path, text_bytes("abc"));
  const auto reader =
      make_reader({.throttle = {.bytes_per_second = 1e9, .latency_seconds = 1e-4, .concurrency = 1},
                   .failure = {.probability = 1.0, .match = "bad"}});
  FetchBuffer buffer;
  reader->read(path, 0, Reader::kToEnd, buffer);
  EXPECT_EQ(buffer.size(), 3U);
  EXPECT_TRUE(contains(message_of<DataError>([&] { reader->read(path + "bad", 0, 1, buffer); }),
                       "injected"));
  const FailingReader failing(make_reader({}), {.probability = 0.1, .seed = 4});
  int chosen = 0;
  for (int i = 0; i < 10'000; ++i) {
    chosen += failing.chooses("folder/picture_" + std::to_string(i) + ".jpg") ? 1 : 0;
  }
  EXPECT_NEAR(chosen, 1000, 120);
}

TEST(Readers, AHungReadWaitsUntilItIsReleased) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "stuck").string();
  write_bytes(path, text_bytes("abc"));
  HungReader reader(make_reader({}), "stuck");
  FetchBuffer buffer;
  std::thread thread([&] { reader.read(path, 0, Reader::kToEnd, buffer); });
  while (reader.waiting() == 0) {
    std::this_thread::yield();
  }
  reader.release();
  thread.join();
  EXPECT_EQ(buffer.size(), 3U);
}

// ---- data set and cache -------------------------------------------------------------------------

struct Tree {
  TemporaryFolder folder;
  Tree() {
    for (int i = 0; i < 12; ++i) {
      write_bytes(folder.path() / ("c" + std::to_string(i % 3)) / (std::to_string(i) + ".jpg"),
                  encode_jpeg(make_picture(60 + i, 50)));
    }
  }
  std::string root() const { return folder.path().string(); }
};

TEST(ImageDataset, ErrorsNameTheFile) {
  const TemporaryFolder folder;
  Bytes half = encode_jpeg(make_picture(64, 64));
  half.resize(half.size() / 2);
  write_bytes(folder.path() / "a/half.jpg", half);
  write_bytes(folder.path() / "a/none.jpg", {});
  write_bytes(folder.path() / "a/text.jpg", text_bytes("not a picture"));
  const auto dataset = open_image_folder(folder.path().string(), {}, {.transform = kSmall});
  for (const auto& [index, name] :
       {std::pair{0, "a/half.jpg"}, {1, "a/none.jpg"}, {2, "a/text.jpg"}}) {
    EXPECT_TRUE(
        contains(message_of<DataError>([&, i = index] { load(*dataset, {.index = i}); }), name));
  }
  EXPECT_THROW(load(*dataset, {.index = 3}), Error);
}

TEST(ImageDataset, NeitherCacheNorThreadsChangeASample) {
  const Tree tree;
  TransformOptions transform{.size = 24, .flip_horizontal = 0.5F};
  const auto plain = open_image_folder(tree.root(), {}, {.transform = transform});
  std::vector<Sample> want;
  for (i64 i = 0; i < 36; ++i) {
    want.push_back(load(*plain, {.index = i % 12, .epoch = i / 12, .seed = 5}));
  }
  for (const CacheKind kind : {CacheKind::kFiles, CacheKind::kPixels}) {
    for (const i64 cap : {i64{100}, i64{30'000}, i64{10'000'000}}) {
      const auto cached = open_image_folder(
          tree.root(), {}, {.transform = transform, .cache = {.max_bytes = cap, .kind = kind}});
      std::vector<std::thread> threads;
      threads.reserve(4);
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          for (i64 i = 0; i < 36; ++i) {
            const i64 at = (i * 5 + i64(t) * 7) % 36;
            EXPECT_EQ(load(*cached, {.index = at % 12, .epoch = at / 12, .seed = 5}),
                      want[std::size_t(at)]);
          }
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      EXPECT_LE(cached->cache().bytes(), cap);
      EXPECT_EQ(cached->cache().count(), cap == 100      ? 0
                                         : cap == 30'000 ? cached->cache().count()
                                                         : 12);
    }
  }
  EXPECT_THROW(open_image_folder(tree.root(), {},
                                 {.transform = {.quality = Quality::kFast},
                                  .cache = {.max_bytes = 1000, .kind = CacheKind::kPixels}}),
               ConfigError);
}

TEST(ImageDataset, CachedSamplesAreNotReadAgain) {
  const Tree tree;
  const auto dataset =
      open_image_folder(tree.root(), {}, {.transform = kSmall, .cache = {.max_bytes = 1'000'000}});
  const Sample before = load(*dataset, {.index = 4});
  fs::remove(tree.folder.path() / dataset->describe(4).substr(tree.root().size() + 1));
  EXPECT_EQ(load(*dataset, {.index = 4}), before);
  EXPECT_NO_THROW(load(*dataset, {.index = 5}));
}

TEST(ImageDataset, FieldsFollowTheTransform) {
  const Tree tree;
  const auto dataset = open_image_folder(
      tree.root(), {}, {.transform = {.size = 20, .channels = 1, .normalise = true}});
  ASSERT_EQ(dataset->fields().size(), 2U);
  EXPECT_EQ(dataset->fields()[0].name, "image");
  EXPECT_EQ(dataset->fields()[0].dtype, DType::f32);
  EXPECT_EQ(dataset->fields()[0].shape, (Shape{20, 20, 1}));
  EXPECT_EQ(dataset->fields()[1].bytes(), 8);
  EXPECT_EQ(dataset->classes(), 3);
  EXPECT_TRUE(dataset->needs_fetch());
}

}  // namespace
}  // namespace penstock::data::image
