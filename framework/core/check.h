// Errors and checks. User input never reaches an assert: it reaches `check` or a typed error whose
// message says what was done, what was expected, what came, and what to do.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "framework/core/format.h"

namespace penstock {

// Process exit codes; only main() exits.
enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,  // a fault of ours
  kUsage = 2,     // command line or config
  kData = 3,      // data set or sample
  kMemory = 4,    // nothing fits in memory
  kDiverged = 5,  // the loss or a gradient is not finite and policy says stop
  kStorage = 6,   // checkpoints, logs, locks
  kDevice = 7,    // driver, GPU or library
  kStalled = 8,   // nothing advances
  kInterrupted = 130,
  kTerminated = 143,
};

// Base of everything that Penstock throws. `code` is what main() exits with.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::kInternal)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A key, value or option that cannot be used; the message begins with file:line:column.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(message, ExitCode::kUsage) {}
};
// A file or sample that cannot be used; the message names it.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(message, ExitCode::kData) {}
};
// A checkpoint, log or lock that cannot be read or written.
class StorageError : public Error {
 public:
  explicit StorageError(const std::string& message) : Error(message, ExitCode::kStorage) {}
};
// Driver, GPU or vendor library failure.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(message, ExitCode::kDevice) {}
};
// A loss or gradient that is not finite and cannot be skipped.
class DivergedError : public Error {
 public:
  explicit DivergedError(const std::string& message) : Error(message, ExitCode::kDiverged) {}
};
// Nothing advances: the watchdog, or a read that exceeds its limit.
class StalledError : public Error {
 public:
  explicit StalledError(const std::string& message) : Error(message, ExitCode::kStalled) {}
};
// A failed allocation. Catching it leaves the allocator as it was before the request.
class OutOfMemory : public Error {
 public:
  struct Figures {
    i64 requested = 0;  // bytes asked for
    i64 used = 0;       // bytes in live tensors of that region
    i64 committed = 0;  // bytes backed by memory
    i64 available =
        0;  // bytes the region could still be given: limit, device and driver considered
  };
  OutOfMemory(const std::string& message, Figures figures)
      : Error(message, ExitCode::kMemory), figures_(figures) {}
  const Figures& figures() const { return figures_; }

 private:
  Figures figures_;
};

[[noreturn]] void fail(const std::string& message);

// Throws Error with the formatted message unless `condition` holds. The message is only built on
// failure: `check(a == b, "matmul: inner sizes {} and {} differ", a, b)`.
template <class... Args>
inline void check(bool condition, std::string_view text, const Args&... args) {
  if (!condition) [[unlikely]] {
    fail(format(text, args...));
  }
}

}  // namespace penstock
