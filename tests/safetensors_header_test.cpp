// Hostile safetensors headers: each rule of the format broken on its own, refused with a message
// that names the tensor.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "framework/io/safetensors.h"
#include "tests/storage_helpers.h"

// A sanitizer's memory is not ours to count.
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED
#endif
#endif

namespace penstock::io {
namespace {

std::string length_of(std::uint64_t n) {
  std::string out;
  for (int i = 0; i < 8; ++i) {
    out += char(n >> (8 * i));
  }
  return out;
}

// A file of this header and `data` bytes.
std::string file_of(const std::string& header, std::size_t data = 0) {
  return length_of(header.size()) + header + std::string(data, '\1');
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
         "],\"data_offsets\":[" + offsets + "]}";
}

std::string repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) {
    out += text;
  }
  return out;
}

struct Case {
  const char* rule;
  std::string file;
  const char* expected = "";  // in the message
};

std::vector<Case> hostile_files() {
  const std::string good = tensor("a", "F32", "2", "0,8");
  const auto one = [](const std::string& body, std::size_t data = 8) {
    return file_of("{" + body + "}", data);
  };
  std::vector<Case> cases = {
      // The length.
      {"empty file", ""},
      {"seven bytes", "1234567"},
      {"only a length", length_of(2)},
      {"length 0", length_of(0) + "{}"},
      {"length 2^64 - 1", length_of(~std::uint64_t{0}) + "{}", "18446744073709551615"},
      {"length 2^63", length_of(std::uint64_t{1} << 63) + "{}"},
      {"length 2^63 - 1", length_of((std::uint64_t{1} << 63) - 1) + "{}"},
      {"length of the file", length_of(10) + "{}"},
      {"length one too long", length_of(3) + "{}"},
      {"length 2^32 + 2", length_of((std::uint64_t{1} << 32) + 2) + "{}"},
      // The JSON.
      {"no brace first", file_of(" {}"), "begin with"},
      {"a list", file_of("[]"), "begin with"},
      {"a byte-order mark", file_of("\xef\xbb\xbf{}")},
      {"an unfinished object", file_of("{")},
      {"a second object", file_of("{}{}")},
      {"text behind", file_of("{}x")},
      {"padding of zeros", file_of(std::string("{}\0\0\0\0\0\0", 8)), "NUL"},
      {"a comment", file_of("{/* */}")},
      {"a trailing comma", one(good + ",")},
      {"single quotes", file_of("{'a':1}")},
      {"a name of invalid UTF-8", one(tensor("\xff\xfe", "F32", "2", "0,8"))},
      {"an overlong name in UTF-8", one(tensor("\xc0\x80", "F32", "2", "0,8"))},
      {"a lone surrogate", one(tensor("\\ud800", "F32", "2", "0,8"))},
      {"a raw newline in a name", one(tensor("a\nb", "F32", "2", "0,8"))},
      {"a raw NUL in a name", one(tensor(std::string("a\0b", 3), "F32", "2", "0,8")), "NUL"},
      {"an escaped NUL in a name", one(tensor("a\\u0000b", "F32", "2", "0,8")), "NUL"},
      {"a name of 1 MB", one(tensor(std::string(1 << 20, 'n'), "F32", "2", "0,8")), "longer"},
      {"a string of 5 MB", one("\"" + std::string(5 << 20, 'n') + "\":1"), "longer"},
      {"100 000 lists deep", file_of("{\"a\":" + std::string(100'000, '['))},
      {"100 000 objects deep", file_of(repeated("{\"a\":", 100'000))},
      {"10^6 lists in a shape", one("\"a\":{\"shape\":" + std::string(1'000'000, '['))},
      {"a number of 2 MB", one("\"a\":{\"shape\":[" + std::string(2 << 20, '1') + "]}"), "number"},
      {"white space of 2 MB", one(std::string(2 << 20, ' ') + good), "white space"},
      // The grammar.
      {"a tensor that is a number", one("\"a\":1")},
      {"a tensor that is null", one("\"a\":null")},
      {"a tensor that is a string", one("\"a\":\"F32\"")},
      {"a tensor that is a list", one("\"a\":[]")},
      {"an object in a tensor", one("\"a\":{\"shape\":{}}")},
      {"an unknown field",
       one("\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}"),
       "unknown field"},
      {"a field twice",
       one("\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"),
       "twice"},
      {"no dtype", one("\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}"), "dtype is missing"},
      {"no shape", one("\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}"), "shape is missing"},
      {"no offsets", one("\"a\":{\"dtype\":\"F32\",\"shape\":[2]}"), "data_offsets is missing"},
      {"an empty tensor object", one("\"a\":{}")},
      {"an unknown dtype", one(tensor("a", "F128", "2", "0,8")), "not known"},
      {"a dtype in small letters", one(tensor("a", "f32", "2", "0,8"))},
      {"a dtype that is a number", one("\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}")},
      {"a list in a shape", one(tensor("a", "F32", "[2]", "0,8"))},
      {"a string in a shape", one(tensor("a", "F32", "\"2\"", "0,8"))},
      {"a truth value in a shape", one(tensor("a", "F32", "true", "0,8"))},
      {"one offset", one(tensor("a", "F32", "2", "8")), "expected 2"},
      {"three offsets", one(tensor("a", "F32", "2", "0,8,8"))},
      {"no offsets in the list", one(tensor("a", "F32", "2", ""))},
      {"nine dimensions", one(tensor("a", "F32", "2,1,1,1,1,1,1,1,1", "0,8"))},
      // The numbers.
      {"a negative size", one(tensor("a", "F32", "-2", "0,8"))},
      {"two negative sizes", one(tensor("a", "F32", "-2,-1", "0,8"))},
      {"a fractional size", one(tensor("a", "F32", "2.0", "0,8"))},
      {"a size with an exponent", one(tensor("a", "F32", "2e0", "0,8"))},
      {"a size with a leading zero", one(tensor("a", "F32", "02", "0,8"))},
      {"a size of 2^63", one(tensor("a", "F32", "9223372036854775808", "0,8"))},
      {"a size of 2^64", one(tensor("a", "F32", "18446744073709551616", "0,8"))},
      {"a product that wraps to 2", one(tensor("a", "F32", "9223372036854775807,2", "0,8"))},
      {"a product that wraps to 0", one(tensor("a", "F32", "4294967296,4294967296", "0,0"), 0)},
      {"bytes that wrap to 0", one(tensor("a", "F64", "2305843009213693952", "0,0"), 0)},
      {"a wrapped product behind a zero",
       one(tensor("a", "F32", "4294967296,4294967296,0,1e9", "0,0"), 0)},
      {"negative offsets", one(tensor("a", "F32", "2", "-8,0"))},
      {"an offset of 2^64 - 1", one(tensor("a", "F32", "2", "18446744073709551615,8"))},
      {"an end of 2^63 - 1",
       one(tensor("a", "F32", "2", "9223372036854775799,9223372036854775807"))},
      {"a fractional offset", one(tensor("a", "F32", "2", "0.0,8"))},
      {"offsets that end before they begin", one(tensor("a", "F32", "2", "8,0")),
       "before they begin"},
      {"an end behind the file", one(tensor("a", "F32", "3", "0,12")), "cut short"},
      {"a shape that needs more", one(tensor("a", "F32", "1000,1000", "0,4"), 4),
       "needs 4000000 bytes"},
      {"a shape that needs less", one(tensor("a", "F32", "1", "0,8")), "needs 4 bytes"},
      {"an empty tensor with bytes", one(tensor("a", "F32", "0", "0,8"))},
      // The cover.
      {"a hole at the start", one(tensor("a", "F32", "1", "4,8")), "belong to no tensor"},
      {"a hole in the middle",
       one(tensor("a", "F32", "1", "0,4") + "," + tensor("b", "F32", "1", "8,12"), 12),
       "belong to no tensor"},
      {"bytes behind the last tensor", one(good, 9), "end after 8"},
      {"data without tensors", file_of("{}", 1)},
      {"an overlap",
       one(tensor("a", "F32", "2", "0,8") + "," + tensor("b", "F32", "2", "4,12"), 12), "overlap"},
      {"an alias", one(good + "," + tensor("b", "F32", "2", "0,8")), "overlap"},
      {"one inside another",
       one(tensor("a", "F32", "4", "0,16") + "," + tensor("b", "F32", "1", "4,8"), 16), "overlap"},
      {"an empty tensor inside another",
       one(tensor("a", "F32", "2", "0,8") + "," + tensor("b", "F32", "0", "4,4"))},
      // The names.
      {"a tensor twice", one(tensor("a", "F32", "1", "0,4") + "," + tensor("a", "F32", "1", "4,8")),
       "twice"},
      {"a tensor twice by an escape",
       one(tensor("a", "F32", "1", "0,4") + "," + tensor("\\u0061", "F32", "1", "4,8")), "twice"},
      // The metadata.
      {"metadata twice", one("\"__metadata__\":{},\"__metadata__\":{}," + good), "twice"},
      {"a metadata key twice", one("\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}," + good), "twice"},
      {"metadata of a number", one("\"__metadata__\":{\"k\":1}," + good), "strings to strings"},
      {"metadata of null", one("\"__metadata__\":{\"k\":null}," + good), "strings to strings"},
      {"metadata of an object", one("\"__metadata__\":{\"k\":{}}," + good)},
      {"metadata that is a list", one("\"__metadata__\":[]," + good)},
      {"metadata that is a string", one("\"__metadata__\":\"x\"," + good)},
      {"metadata that is a tensor", one(tensor("__metadata__", "F32", "2", "0,8"))},
  };
  std::string many;
  for (int i = 0; i < 70'000; ++i) {
    many += (i == 0 ? "" : ",") +
            tensor(std::to_string(i), "U8", "1", std::to_string(i) + "," + std::to_string(i + 1));
  }
  cases.push_back({"70 000 tensors", one(many, 70'000), "more than 65536"});
  std::string entries;
  for (int i = 0; i < 5'000; ++i) {
    entries += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
  }
  cases.push_back({"5 000 metadata entries", one("\"__metadata__\":{" + entries + "}," + good),
                   "more than 4096"});
  return cases;
}

i64 peak_resident() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return i64(usage.ru_maxrss) * 1024;
}

TEST(SafetensorsHeader, EachRuleBrokenIsRefused) {
  const TestFolder folder;
  const std::vector<Case> cases = hostile_files();
  EXPECT_GE(cases.size(), 80u);
  for (const Case& c : cases) {
    put_file(folder / "hostile.safetensors", c.file);
    [[maybe_unused]] const i64 before = peak_resident();
    const std::string text = message_of<DataError>([&] {
      SCOPED_TRACE(c.rule);
      const SafetensorsFile file(folder / "hostile.safetensors");
    });
    EXPECT_NE(text.find("hostile.safetensors"), std::string::npos) << c.rule;
    EXPECT_NE(text.find(c.expected), std::string::npos) << c.rule << ": " << text;
    EXPECT_LT(text.size(), 1000u) << c.rule;
#ifndef SANITIZED
    EXPECT_LT(peak_resident() - before, 2 * i64(c.file.size()) + (16 << 20)) << c.rule;
#endif
  }
}

TEST(SafetensorsHeader, WhatTheFormatAllowsIsRead) {
  const TestFolder folder;
  const auto entries = [&](const std::string& file) {
    put_file(folder / "a.safetensors", file);
    const SafetensorsFile read(folder / "a.safetensors");
    return std::vector<SafetensorsEntry>(read.entries().begin(), read.entries().end());
  };
  EXPECT_TRUE(entries(file_of("{}")).empty());
  EXPECT_TRUE(entries(file_of("{\"__metadata__\":{}}")).empty());
  EXPECT_EQ(entries(file_of("{" + tensor("a", "F32", "2", "0,8") + "}      ", 8)).size(), 1u);
  EXPECT_EQ(entries(file_of("{ \"a\" :\n{\"data_offsets\":[0,4],\t\"shape\":[],\"dtype\":\"F32\"}}",
                            4))[0]
                .shape,
            Shape{});
  // Listed in any order, with empty tensors between, and types that are only looked at.
  const auto three = entries(file_of("{" + tensor("c", "I8", "2", "8,10") + "," +
                                         tensor("e", "F32", "0,7", "8,8") + "," +
                                         tensor("..", "F8_E4M3", "8", "0,8") + "}",
                                     10));
  ASSERT_EQ(three.size(), 3u);
  EXPECT_EQ(three[0].name, "..");  // a label, never a path
  EXPECT_EQ(three[1].name, "e");
  EXPECT_EQ(three[2].name, "c");
  EXPECT_EQ(entries(file_of("{" + tensor("\\u00e9\\n", "U8", "1", "0,1") + "}", 1))[0].name,
            "\xc3\xa9\n");
}

TEST(SafetensorsHeader, AFileCutAfterwardsIsNamedWithBothSizes) {
  const TestFolder folder;
  const std::string path = folder / "a.safetensors";
  put_file(path, file_of("{" + tensor("a", "F32", "4096", "0,16384") + "}", 16384));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4096);
  std::vector<float> values(4096);
  const std::string text = message_of<StorageError>(
      [&] { file.read(*file.find("a"), 0, 4096, DType::f32, values.data()); });
  EXPECT_NE(text.find("cut short"), std::string::npos) << text;
  const std::string reopened = message_of<DataError>([&] { const SafetensorsFile again(path); });
  EXPECT_NE(reopened.find("16384"), std::string::npos) << reopened;
  EXPECT_NE(reopened.find("12288"), std::string::npos) << reopened;
}

TEST(SafetensorsHeader, MutationsNeverCrashAndWhatIsReadCoversTheFile) {
  const TestFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::string good =
      file_of("{\"__metadata__\":{\"k\":\"v\"}," + tensor("a", "F32", "2,3", "0,24") + "," +
                  tensor("b", "I64", "2", "24,40") + "," + tensor("c", "U8", "", "40,41") + "}   ",
              41);
  std::mt19937 random(20);
  int accepted = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string file = good;
    const int changes = 1 + int(random() % 3);
    for (int c = 0; c < changes; ++c) {
      const std::size_t at = random() % (file.size() - 41);
      switch (random() % 4) {
        case 0: file[at] = char(random()); break;
        case 1: file.erase(at, 1 + random() % 4); break;
        case 2: file.insert(at, 1, "0123456789,\":{}[]-e."[random() % 20]); break;
        default: file[at] = char(file[at] ^ (1 << random() % 8)); break;
      }
    }
    if (random() % 2 == 0 && file.size() > 49) {
      // Make the length right again, so that what lies behind that check is reached.
      file.replace(0, 8, length_of(file.size() - 49));
    }
    put_file(path, file);
    try {
      const SafetensorsFile read(path);
      ++accepted;
      i64 end = 8 + i64(std::uint64_t(static_cast<unsigned char>(file[0])) |
                        std::uint64_t(static_cast<unsigned char>(file[1])) << 8);
      for (const SafetensorsEntry& e : read.entries()) {
        EXPECT_EQ(e.offset, end);
        EXPECT_EQ(e.bytes, e.shape.numel() * size_of(e.type));
        EXPECT_EQ(read.find(e.name), &e);
        end += e.bytes;
        std::vector<std::byte> bytes(std::size_t(e.bytes));
        read.read_bytes(e, 0, bytes);
      }
      EXPECT_EQ(end, i64(file.size()));
    } catch (const DataError&) {
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_LT(accepted, 5'000);
}

}  // namespace
}  // namespace penstock::io
