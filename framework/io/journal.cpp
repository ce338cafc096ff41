#include "framework/io/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "framework/core/log.h"

namespace penstock::io {
namespace {

using Json = nlohmann::json;

constexpr i64 kMaxLine = i64{16} << 20;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

// Cuts off what follows the last newline; how many bytes that was.
i64 cut_torn_line(int fd, i64 size, const std::string& path) {
  std::array<char, 65536> piece{};
  i64 end = size;
  i64 keep = 0;
  while (end > 0 && keep == 0) {
    const i64 begin = std::max<i64>(0, end - i64(piece.size()));
    const ssize_t got = ::pread(fd, piece.data(), std::size_t(end - begin), begin);
    if (got != end - begin) {
      throw_file_error("read", path);
    }
    const std::size_t newline = std::string_view(piece.data(), std::size_t(got)).rfind('\n');
    keep = newline == std::string_view::npos ? 0 : begin + i64(newline) + 1;
    end = begin;
  }
  if (keep < size && ::ftruncate(fd, keep) != 0) {
    throw_file_error("cut the torn last line of", path);
  }
  return size - keep;
}

}  // namespace

Journal::Journal(Options options, const Session& session) : options_(std::move(options)) {
  const std::string& path = options_.path;
  fd_ = Descriptor(::open(path.c_str(),
                          O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd_) {
    throw_file_error("open", path);
  }
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    throw_file_error("look at", path);
  }
  if (!S_ISREG(status.st_mode)) {
    throw StorageError(format("open {}: expected a regular file", path));
  }
  const i64 torn = cut_torn_line(fd_.get(), status.st_size, path);
  const Json line = {{"session",
                      {{"run", session.run},
                       {"step", session.step},
                       {"position", session.position},
                       {"time", utc_now()},
                       {"torn_bytes", torn}}}};
  const std::lock_guard lock(mutex_);
  add(line.dump(-1, ' ', false, Json::error_handler_t::replace));
  drain();
}

Journal::~Journal() {
  if (!sync()) {
    log::error("journal {}: {} lines could not be written: {}", options_.path, waiting(), trouble_);
  }
}

void Journal::write(std::string_view object) {
  check(object.find('\n') == std::string_view::npos && !object.empty(),
        "journal {}: a record is one line, got {}", options_.path, in_quotes(object));
  const std::lock_guard lock(mutex_);
  add(std::string(object));
  if (trouble_.empty() || steady_seconds() - last_try_ >= options_.retry_seconds) {
    drain();
  }
}

bool Journal::sync() {
  const std::lock_guard lock(mutex_);
  drain();
  if (::fsync(fd_.get()) != 0 && errno != EINTR) {
    report_trouble(errno);
    return false;
  }
  return ring_.empty();
}

i64 Journal::waiting() const {
  const std::lock_guard lock(mutex_);
  return i64(ring_.size());
}

i64 Journal::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Journal::add(std::string line) {
  line += '\n';
  ring_size_ += i64(line.size());
  ring_.push_back(std::move(line));
  make_room();
}

// Drops the oldest lines, but for a first one that is partly in the file or tells of lines dropped
// before, and for the newest.
void Journal::make_room() {
  const std::size_t oldest = put_ > 0 || front_is_gap_ ? 1 : 0;
  while (ring_size_ > options_.ring_bytes && ring_.size() > oldest + 1) {
    const i64 bytes = i64(ring_[oldest].size());
    ring_.erase(ring_.begin() + std::ptrdiff_t(oldest));
    ring_size_ -= bytes;
    gap_bytes_ += bytes;
    ++gap_lines_;
    ++lost_;
  }
}

void Journal::drain() {
  last_try_ = steady_seconds();
  while (!ring_.empty() || gap_lines_ > 0) {
    if (gap_lines_ > 0 && put_ == 0 && !front_is_gap_) {
      const Json gap = {
          {"gap", {{"lines", gap_lines_}, {"bytes", gap_bytes_}, {"reason", trouble_}}}};
      ring_.push_front(gap.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
      ring_size_ += i64(ring_.front().size());
      gap_lines_ = 0;
      gap_bytes_ = 0;
      front_is_gap_ = true;
    }
    if (!put_front()) {
      return;
    }
    ring_size_ -= i64(ring_.front().size());
    ring_.pop_front();
    put_ = 0;
    front_is_gap_ = false;
  }
  if (!trouble_.empty()) {
    log::info("journal {}: written again", options_.path);
    trouble_.clear();
  }
}

bool Journal::put_front() {
  const std::string& line = ring_.front();
  while (put_ < line.size()) {
    const ssize_t written = ::write(fd_.get(), line.data() + put_, line.size() - put_);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      report_trouble(written < 0 ? errno : EIO);
      return false;
    }
    put_ += std::size_t(written);
  }
  return true;
}

void Journal::report_trouble(int error) {
  if (trouble_.empty()) {
    log::warning("journal {}: {}; lines are kept and written later", options_.path,
                 std::generic_category().message(error));
  }
  trouble_ = std::generic_category().message(error);
}

// ---- reading

namespace {

enum class Kind { kRecord, kSession, kGap, kMalformed };

struct Line {
  Kind kind = Kind::kMalformed;
  std::optional<i64> step;  // of a record or session
  i64 position = 0;
  i64 gap_lines = 0;
  std::string run;
};

// Picks the few fields that the reader needs out of a line, without building a tree.
class LineHandler : public nlohmann::json_sax<Json> {
 public:
  explicit LineHandler(Line& line) : line_(line) {}

  bool start_object(std::size_t) override {
    if (depth_++ == 0) {
      line_.kind = Kind::kRecord;
    } else if (depth_ == 2 && first_) {
      line_.kind = key_ == "session" ? Kind::kSession : key_ == "gap" ? Kind::kGap : Kind::kRecord;
      first_ = false;
    }
    return depth_ < kMaxDepth;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    first_ = false;
    return depth_ > 0 && ++depth_ < kMaxDepth;
  }
  bool end_array() override { return end_object(); }
  bool key(Json::string_t& key) override {
    key_ = key;
    return true;
  }
  bool number_unsigned(Json::number_unsigned_t value) override {
    const i64 number = i64(std::min<std::uint64_t>(value, std::numeric_limits<i64>::max()));
    const int level = line_.kind == Kind::kRecord ? 1 : 2;
    if (depth_ == level && key_ == "step") {
      line_.step = number;
    } else if (depth_ == level && key_ == "position") {
      line_.position = number;
    } else if (depth_ == level && key_ == "lines") {
      line_.gap_lines = number;
    }
    return scalar();
  }
  bool string(Json::string_t& value) override {
    if (line_.kind == Kind::kSession && depth_ == 2 && key_ == "run") {
      line_.run = value.substr(0, 64);
    }
    return scalar();
  }
  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(Json::number_integer_t) override { return scalar(); }
  bool number_float(Json::number_float_t, const Json::string_t&) override { return scalar(); }
  bool binary(Json::binary_t&) override { return false; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  static constexpr int kMaxDepth = 64;
  bool scalar() {
    first_ = false;
    return depth_ > 0;
  }

  Line& line_;
  std::string key_;
  int depth_ = 0;
  bool first_ = true;  // nothing has been seen of the outer object
};

Line parse_line(std::string_view text) {
  Line line;
  LineHandler handler(line);
  // The parser takes a NUL for the end of its text.
  if (text.find('\0') != std::string_view::npos ||
      !Json::sax_parse(text.begin(), text.end(), &handler)) {
    return {};
  }
  return line;
}

// Calls `f` with every complete line; the number of bytes after the last one is returned.
template <class F>
i64 for_each_line(const InputFile& file, F f) {
  std::string pending;
  std::vector<char> piece(std::size_t{1} << 20);
  for (i64 at = 0; at < file.size();) {
    const auto part = std::span(piece).first(std::min(piece.size(), std::size_t(file.size() - at)));
    file.read(at, std::as_writable_bytes(part));
    at += i64(part.size());
    std::string_view rest(part.data(), part.size());
    for (std::size_t end = 0; (end = rest.find('\n')) != std::string_view::npos;) {
      if (pending.empty()) {
        f(rest.substr(0, end));
      } else {
        f(std::string_view(pending.append(rest.substr(0, end))));
        pending.clear();
      }
      rest.remove_prefix(end + 1);
    }
    pending += rest;
    if (i64(pending.size()) > kMaxLine) {
      throw StorageError(
          format("journal {}: a line is longer than {} bytes", file.path(), kMaxLine));
    }
  }
  return i64(pending.size());
}

}  // namespace

JournalReport read_journal(const std::string& path, const JournalReading& reading) {
  const InputFile file(path);
  JournalReport report;
  std::vector<i64> overtaken;  // by session: records with a later step are superseded
  report.torn_bytes = for_each_line(file, [&](std::string_view text) {
    ++report.lines;
    const Line line = parse_line(text);
    if (line.kind == Kind::kSession) {
      report.sessions.push_back(
          {.run = line.run, .step = line.step.value_or(0), .position = line.position});
      overtaken.push_back(std::numeric_limits<i64>::max());
      for (std::size_t i = overtaken.size() - 1; i-- > 0;) {
        if (overtaken[i] <= report.sessions.back().step) {
          break;  // and so are the ones before: the bounds rise
        }
        overtaken[i] = report.sessions.back().step;
      }
    }
    report.gap_lines += line.kind == Kind::kGap ? line.gap_lines : 0;
    report.malformed += line.kind == Kind::kMalformed ? 1 : 0;
  });
  if (!reading.line) {
    return report;
  }
  std::size_t session = 0;  // how many have begun
  for_each_line(file, [&](std::string_view text) {
    const Line line = parse_line(text);
    session += line.kind == Kind::kSession ? 1 : 0;
    const i64 bound = session == 0 ? std::numeric_limits<i64>::max() : overtaken[session - 1];
    if (line.kind == Kind::kRecord && (reading.superseded || line.step.value_or(0) <= bound)) {
      reading.line(text);
    }
  });
  return report;
}

}  // namespace penstock::io
