// TensorBoard event files, read back by a reader of its own that trusts nothing but the format.
#include "framework/io/tensorboard.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <map>

#include "tests/storage_helpers.h"

namespace penstock::io {
namespace {

// ---- an independent reader

// Bitwise, to share nothing with the writer's table.
std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    }
  }
  return ~crc;
}

std::uint32_t slow_masked(std::string_view bytes) {
  return std::rotr(slow_crc32c(bytes), 15) + 0xA282EAD8u;
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

// The records of an event file; the bytes after the last whole one go to `torn`.
std::vector<std::string> records_of(const std::string& path, std::size_t* torn = nullptr) {
  const std::string text = contents_of(path);
  std::string_view rest = text;
  std::vector<std::string> out;
  while (rest.size() >= 16) {
    const std::uint64_t length = little_endian(rest.substr(0, 8));
    EXPECT_EQ(little_endian(rest.substr(8, 4)), slow_masked(rest.substr(0, 8)));
    if (length > rest.size() - 16) {
      break;
    }
    const std::string_view data = rest.substr(12, length);
    EXPECT_EQ(little_endian(rest.substr(12 + length, 4)), slow_masked(data));
    out.emplace_back(data);
    rest.remove_prefix(16 + length);
  }
  if (torn != nullptr) {
    *torn = rest.size();
  } else {
    EXPECT_TRUE(rest.empty());
  }
  return out;
}

// Fields of a protocol-buffer message by number; numbers as their bits.
struct Field {
  std::uint64_t number = 0;
  std::string bytes;
};
std::multimap<int, Field> fields_of(std::string_view m) {
  std::multimap<int, Field> out;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto c = static_cast<unsigned char>(m.at(0));
      m.remove_prefix(1);
      value |= std::uint64_t(c & 127) << shift;
      if (c < 128) {
        return value;
      }
    }
  };
  while (!m.empty()) {
    const std::uint64_t key = varint();
    Field field;
    const std::size_t width = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : 0;
    if ((key & 7) == 0) {
      field.number = varint();
    } else if (width > 0) {
      field.number = little_endian(m.substr(0, width));
      m.remove_prefix(width);
    } else {
      const std::uint64_t length = varint();
      field.bytes = m.substr(0, length);
      m.remove_prefix(length);
    }
    out.emplace(int(key >> 3), field);
  }
  return out;
}
Field one(const std::multimap<int, Field>& fields, int number) {
  EXPECT_EQ(fields.count(number), 1u) << number;
  const auto at = fields.find(number);
  return at == fields.end() ? Field{} : at->second;
}
double as_double(const Field& f) {
  return std::bit_cast<double>(f.number);
}
float as_float(const Field& f) {
  return std::bit_cast<float>(std::uint32_t(f.number));
}
std::vector<double> doubles_of(const std::string& packed) {
  std::vector<double> out(packed.size() / 8);
  std::memcpy(out.data(), packed.data(), out.size() * 8);
  return out;
}
// The Summary.Value of an event.
std::multimap<int, Field> value_of(const std::string& event) {
  return fields_of(one(fields_of(one(fields_of(event), 5).bytes), 1).bytes);
}

// ---- tests

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(StorageEvents, ChecksumsAreTheFormats) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(masked_crc32c(bytes_of("123456789")), 0xC78AB0E5u);
  EXPECT_EQ(masked_crc32c(bytes_of(std::string_view("\x18\0\0\0\0\0\0\0", 8))), 0x224B7FA3u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(StorageEvents, ScalarsComeBackNanIncluded) {
  const TestFolder folder;
  std::string path;
  {
    EventWriter writer(folder.path(), 0);
    path = writer.path();
    writer.scalar("train/loss", 0.5f, 1);
    writer.scalar("train/loss", std::numeric_limits<float>::quiet_NaN(), 2);
    writer.scalar("train/loss", -std::numeric_limits<float>::infinity(), i64{1} << 40);
    writer.scalar("bad \xff\xc3\x28 \xed\xa0\x80 name", 1, 4);
    EXPECT_EQ(writer.lost(), 0);
  }
  EXPECT_NE(path.find("events.out.tfevents."), std::string::npos);
  const auto records = records_of(path);
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(one(fields_of(records[0]), 3).bytes, "brain.Event:2");
  EXPECT_GT(as_double(one(fields_of(records[1]), 1)), 1.6e9);
  EXPECT_EQ(one(fields_of(records[1]), 2).number, 1u);
  EXPECT_EQ(one(value_of(records[1]), 1).bytes, "train/loss");
  EXPECT_EQ(as_float(one(value_of(records[1]), 2)), 0.5f);
  EXPECT_TRUE(std::isnan(as_float(one(value_of(records[2]), 2))));
  EXPECT_TRUE(std::isinf(as_float(one(value_of(records[3]), 2))));
  EXPECT_EQ(one(fields_of(records[3]), 2).number, std::uint64_t{1} << 40);
  EXPECT_EQ(one(value_of(records[4]), 1).bytes,
            "bad ?"
            "?( ?"
            "?? name");
}

TEST(StorageEvents, HistogramsAndTextComeBack) {
  const TestFolder folder;
  std::string path;
  const std::vector<double> limits = {-1, 0, 1.5};
  const std::vector<double> counts = {1, 2, 3};
  {
    EventWriter writer(folder.path(), 0);
    path = writer.path();
    writer.histogram("weights",
                     {.minimum = -2,
                      .maximum = 1,
                      .count = 6,
                      .sum = 1.5,
                      .sum_of_squares = 9,
                      .limits = limits,
                      .counts = counts},
                     3);
    writer.text("config", "batch: **64** \xe2\x82\xac", 0);
    EXPECT_THROW(writer.histogram("none", {}, 3), Error);
  }
  const auto records = records_of(path);
  ASSERT_EQ(records.size(), 3u);
  const auto histogram = fields_of(one(value_of(records[1]), 5).bytes);
  EXPECT_EQ(as_double(one(histogram, 1)), -2);
  EXPECT_EQ(as_double(one(histogram, 2)), 1);
  EXPECT_EQ(as_double(one(histogram, 3)), 6);
  EXPECT_EQ(as_double(one(histogram, 4)), 1.5);
  EXPECT_EQ(as_double(one(histogram, 5)), 9);
  EXPECT_EQ(doubles_of(one(histogram, 6).bytes), limits);
  EXPECT_EQ(doubles_of(one(histogram, 7).bytes), counts);
  const auto text = value_of(records[2]);
  const auto tensor = fields_of(one(text, 8).bytes);
  EXPECT_EQ(one(tensor, 1).number, 7u);  // DT_STRING
  EXPECT_EQ(one(tensor, 8).bytes, "batch: **64** \xe2\x82\xac");
  EXPECT_EQ(one(fields_of(one(fields_of(one(text, 9).bytes), 1).bytes), 1).bytes, "text");
}

TEST(StorageEvents, AResumedSessionSaysFromWhereInAFileOfItsOwn) {
  const TestFolder folder;
  const EventWriter first(folder.path(), 0);
  const EventWriter second(folder.path(), 100);
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(records_of(first.path()).size(), 1u);
  const auto records = records_of(second.path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(one(fields_of(records[1]), 2).number, 100u);
  EXPECT_EQ(one(fields_of(one(fields_of(records[1]), 7).bytes), 1).number, 1u);  // START
}

TEST(StorageEvents, AFullDiskLosesEventsAndNoRecordIsHalf) {
  const TestFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const auto limit = [](rlim_t bytes) {
      const rlimit l{.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &l);
    };
    EventWriter writer(folder.path(), 0);
    writer.scalar("a", 1, 1);
    writer.flush();
    limit(rlim_t(contents_of(writer.path()).size() + 30));  // within a record
    writer.scalar("a", 1, 2);
    writer.flush();
    writer.scalar("a", 1, 3);
    writer.flush();
    const bool lost = writer.lost() == 2;
    limit(RLIM_INFINITY);
    writer.scalar("a", 1, 4);
    writer.flush();
    ::_exit(lost && writer.lost() == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const auto files = std::filesystem::directory_iterator(folder.path());
  const auto records = records_of(files->path().string());
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(one(fields_of(records[1]), 2).number, 1u);
  EXPECT_EQ(one(fields_of(records[2]), 2).number, 4u);
}

TEST(StorageEvents, AKillLeavesAtMostOneShortLastRecord) {
  const TestFolder folder;
  std::string path;
  {
    EventWriter writer(folder.path(), 0);
    path = writer.path();
    for (int i = 0; i < 10; ++i) {
      writer.scalar("a", float(i), i);
    }
  }
  const std::size_t whole = contents_of(path).size();
  for (std::size_t cut = whole; cut-- > whole - 60;) {
    std::filesystem::resize_file(path, cut);
    std::size_t torn = 0;
    const auto records = records_of(path, &torn);
    EXPECT_GE(records.size(), 9u);
    EXPECT_LT(torn, 60u);
  }
}

TEST(StorageEvents, AFolderThatIsNotThereIsAnError) {
  const TestFolder folder;
  EXPECT_THROW(EventWriter(folder / "none", 0), FileError);
}

}  // namespace
}  // namespace penstock::io
