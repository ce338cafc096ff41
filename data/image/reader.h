// Where bytes come from: files, and files made slow, failing or stuck on purpose. The lab provokes
// storage trouble with these, and tests use them; all work with any data set that takes a Reader.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace penstock::data {

class Reader {
 public:
  // `size` that means "to the end of the file".
  static constexpr i64 kToEnd = -1;

  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  virtual ~Reader() = default;

  // Blocking; makes `buffer` exactly the bytes [offset, offset + size) of the file. Called from
  // many threads at once. Throws DataError naming the file: missing, not a regular file, shorter
  // than asked for, larger than the limit, or what the system reports.
  virtual void read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const = 0;
};

class FileReader final : public Reader {
 public:
  // No single read may exceed max_bytes.
  explicit FileReader(i64 max_bytes) : max_bytes_(max_bytes) {}
  void read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const override;

 private:
  i64 max_bytes_;
};

// A storage device: requests wait for one of `concurrency` slots (0: unlimited), take
// `latency_seconds`, and share `bytes_per_second` (0: unlimited) through a token bucket of
// `burst_bytes`.
struct ThrottleOptions {
  double bytes_per_second = 0;
  double burst_bytes = 0;
  double latency_seconds = 0;
  int concurrency = 0;
  bool any() const { return bytes_per_second > 0 || latency_seconds > 0 || concurrency > 0; }
};

// The device's schedule, in whatever time the caller counts; not synchronised.
class ThrottleModel {
 public:
  explicit ThrottleModel(const ThrottleOptions& options);
  // When a request for `bytes` made at `now` is done. Requests come in order of time.
  double finish(double now, i64 bytes);

 private:
  ThrottleOptions options_;
  std::vector<double> slot_free_;
  double pipe_free_ = -1e300;
};

// Sleeps until the modelled device would be done.
class ThrottledReader final : public Reader {
 public:
  ThrottledReader(std::shared_ptr<const Reader> inner, const ThrottleOptions& options);
  void read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const override;

 private:
  std::shared_ptr<const Reader> inner_;
  mutable std::mutex mutex_;
  mutable ThrottleModel model_;
};

// Which reads fail. A path is chosen when it contains `match` and its own hash falls below
// `probability`: the same paths in every run, whatever the threads do.
struct FailureOptions {
  double probability = 0;
  std::string match;
  std::uint64_t seed = 0;
  bool any() const { return probability > 0; }
};

class FailingReader final : public Reader {
 public:
  FailingReader(std::shared_ptr<const Reader> inner, const FailureOptions& options)
      : inner_(std::move(inner)), options_(options) {}
  bool chooses(std::string_view path) const;
  void read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const override;

 private:
  std::shared_ptr<const Reader> inner_;
  FailureOptions options_;
};

// Reads of paths that contain `match` never return until release().
class HungReader final : public Reader {
 public:
  HungReader(std::shared_ptr<const Reader> inner, std::string match)
      : inner_(std::move(inner)), match_(std::move(match)) {}
  void read(const std::string& path, i64 offset, i64 size, FetchBuffer& buffer) const override;
  // Lets all stuck and future reads go on.
  void release();
  // Reads that are stuck now.
  int waiting() const;

 private:
  std::shared_ptr<const Reader> inner_;
  std::string match_;
  mutable std::mutex mutex_;
  mutable std::condition_variable released_;
  mutable int waiting_ = 0;
  bool open_ = false;
};

// A reader by its description; only what is asked for is put in the way.
struct ReaderOptions {
  i64 max_bytes = i64{256} << 20;
  ThrottleOptions throttle{};
  FailureOptions failure{};
  std::string hang_on;  // substring of the paths whose reads hang; empty for none
};
std::shared_ptr<const Reader> make_reader(const ReaderOptions& options);

}  // namespace penstock::data
