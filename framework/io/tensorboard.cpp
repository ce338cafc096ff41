#include "framework/io/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "framework/core/log.h"

namespace penstock::io {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 16;

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);  // the polynomial, reflected
    }
    table[i] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

// A protocol-buffer message under construction. Field numbers are those of TensorFlow's
// event.proto, summary.proto and tensor.proto.
class Message {
 public:
  Message& varint(int field, std::uint64_t value) {
    key(field, 0);
    raw_varint(value);
    return *this;
  }
  Message& fixed64(int field, double value) {
    key(field, 1);
    little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  Message& fixed32(int field, float value) {
    key(field, 5);
    little_endian(std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    raw_varint(value.size());
    text_ += value;
    return *this;
  }
  Message& packed(int field, std::span<const double> values) {
    key(field, 2);
    raw_varint(8 * values.size());
    for (const double value : values) {
      little_endian(std::bit_cast<std::uint64_t>(value), 8);
    }
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  void key(int field, unsigned wire_type) { raw_varint(unsigned(field) << 3 | wire_type); }
  void raw_varint(std::uint64_t value) {
    while (value >= 128) {
      text_ += char(value | 128);
      value >>= 7;
    }
    text_ += char(value);
  }
  void little_endian(std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) {
      text_ += char(value >> (8 * i));
    }
  }

  std::string text_;
};

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Message event(i64 step) {
  return Message().fixed64(1, wall_time()).varint(2, std::uint64_t(step));
}

// A string field of a protocol buffer must be valid UTF-8, or readers refuse the whole message.
std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto at = [&](std::size_t k) {
      return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
    };
    const unsigned first = at(0);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xC2 && first < 0xE0 ? 2
                               : first >= 0xE0 && first < 0xF0 ? 3
                               : first >= 0xF0 && first < 0xF5 ? 4
                                                               : 0;
    bool good = length > 0;
    for (std::size_t k = 1; k < length; ++k) {
      good = good && (at(k) & 0xC0) == 0x80;
    }
    // Overlong forms, surrogates and what lies beyond U+10FFFF.
    good = good && !(first == 0xE0 && at(1) < 0xA0) && !(first == 0xED && at(1) >= 0xA0) &&
           !(first == 0xF0 && at(1) < 0x90) && !(first == 0xF4 && at(1) >= 0x90);
    if (good) {
      out += text.substr(i, length);
    } else {
      out += '?';
    }
    i += good ? length : 1;
  }
  return out;
}

void append_framed(std::string& out, std::string_view data) {
  const auto little_endian = [](std::uint64_t value, std::size_t width) {
    std::string bytes;
    for (std::size_t i = 0; i < width; ++i) {
      bytes += char(value >> (8 * i));
    }
    return bytes;
  };
  const std::string length = little_endian(data.size(), 8);
  out += length;
  out += little_endian(masked_crc32c(std::as_bytes(std::span(length))), 4);
  out += data;
  out += little_endian(masked_crc32c(std::as_bytes(std::span(data))), 4);
}

std::string new_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  // The time comes first and with a fixed width: readers take the files of a folder in that order.
  std::string seconds = format("{}", i64(wall_time()));
  seconds.insert(0, seconds.size() < 10 ? 10 - seconds.size() : 0, '0');
  std::string name = format("events.out.tfevents.{}.{}.{}.{}", seconds,
                            std::string_view(host.data()), ::getpid(), random_suffix());
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ std::uint32_t(b)) & 255];
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

EventWriter::EventWriter(const std::string& folder, i64 resumed_step)
    : path_(folder + "/" + new_name()) {
  fd_ = Descriptor(
      ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd_) {
    throw_file_error("create", path_);
  }
  record(Message().fixed64(1, wall_time()).bytes(3, "brain.Event:2").text());
  if (resumed_step > 0) {
    // SessionLog with status START: what earlier files say of this step and later is void.
    record(event(resumed_step).bytes(7, Message().varint(1, 1).text()).text());
  }
  flush();
}

EventWriter::~EventWriter() {
  flush();
}

void EventWriter::record(std::string_view event) {
  append_framed(buffer_, event);
  ++buffered_;
  if (buffer_.size() >= kBuffer) {
    flush();
  }
}

void EventWriter::summary(std::string_view value, i64 step) {
  record(event(step).bytes(5, Message().bytes(1, value).text()).text());
}

void EventWriter::scalar(std::string_view tag, float value, i64 step) {
  summary(Message().bytes(1, valid_utf8(tag)).fixed32(2, value).text(), step);
}

void EventWriter::text(std::string_view tag, std::string_view markdown, i64 step) {
  constexpr int kDtString = 7;
  const Message shape = Message().bytes(2, Message().varint(1, 1).text());  // one dimension of 1
  const Message tensor =
      Message().varint(1, kDtString).bytes(2, shape.text()).bytes(8, valid_utf8(markdown));
  const Message metadata = Message().bytes(1, Message().bytes(1, "text").text());
  summary(
      Message().bytes(1, valid_utf8(tag)).bytes(8, tensor.text()).bytes(9, metadata.text()).text(),
      step);
}

void EventWriter::histogram(std::string_view tag, const Histogram& h, i64 step) {
  check(h.limits.size() == h.counts.size() && !h.limits.empty(),
        "tensorboard: histogram {} has {} limits and {} counts, expected as many, at least one",
        in_quotes(tag), h.limits.size(), h.counts.size());
  const Message histogram = Message()
                                .fixed64(1, h.minimum)
                                .fixed64(2, h.maximum)
                                .fixed64(3, h.count)
                                .fixed64(4, h.sum)
                                .fixed64(5, h.sum_of_squares)
                                .packed(6, h.limits)
                                .packed(7, h.counts);
  summary(Message().bytes(1, valid_utf8(tag)).bytes(5, histogram.text()).text(), step);
}

void EventWriter::flush() {
  if (buffer_.empty()) {
    return;
  }
  int error = 0;
  // Half a record would hide all later ones from readers.
  if (broken_ && ::ftruncate(fd_.get(), written_) != 0) {
    error = errno;
  }
  broken_ = error != 0;
  std::size_t done = 0;
  while (error == 0 && done < buffer_.size()) {
    const ssize_t written = ::write(fd_.get(), buffer_.data() + done, buffer_.size() - done);
    if (written > 0) {
      done += std::size_t(written);
    } else if (written == 0 || errno != EINTR) {
      error = written == 0 ? EIO : errno;
    }
  }
  if (error == 0) {
    written_ += i64(buffer_.size());
  } else {
    broken_ = true;
    lost_ += buffered_;
    log::warn_once("tensorboard " + path_,
                   format("tensorboard {}: {}; events are lost until it can be written again",
                          path_, std::generic_category().message(error)));
  }
  buffer_.clear();
  buffered_ = 0;
}

}  // namespace penstock::io
