#include "framework/io/watchdog.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "framework/core/log.h"
#include "framework/io/files.h"
#include "framework/io/signals.h"

namespace penstock::io {
namespace {

std::string sentence(const Activity& a) {
  std::string text = a.stage.empty() ? "unknown stage" : a.stage;
  if (a.worker >= 0) {
    text += format(", worker {}", a.worker);
  }
  if (a.sample >= 0) {
    text += format(", sample {}", a.sample);
  }
  if (!a.file.empty()) {
    text += ", file " + in_quotes(a.file, 400);
  }
  return text + format(", for {}", seconds_text(a.seconds));
}

}  // namespace

void StallRule::step_took(double seconds) {
  if (steps_.size() < kSteps) {
    steps_.push_back(seconds);
  } else {
    steps_[next_++ % kSteps] = seconds;
  }
}

double StallRule::limit() const {
  if (steps_.empty()) {
    return minimum_;
  }
  std::vector<double> sorted = steps_;
  const auto middle = sorted.begin() + std::ptrdiff_t(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(minimum_, factor_ * *middle);
}

std::string stall_text(double silent, double limit, const std::vector<Activity>& activities) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Activity& a : activities) {
    nlohmann::ordered_json entry = {{"stage", a.stage}, {"seconds", a.seconds}};
    if (a.worker >= 0) {
      entry["worker"] = a.worker;
    }
    if (a.sample >= 0) {
      entry["sample"] = a.sample;
    }
    if (!a.file.empty()) {
      entry["file"] = a.file;
    }
    list.push_back(std::move(entry));
  }
  const nlohmann::ordered_json json = {
      {"seconds", silent}, {"limit", limit}, {"activities", std::move(list)}};
  // File names may be any bytes.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Watchdog::Watchdog(Options options)
    : options_(std::move(options)),
      rule_(options_.minimum_seconds, options_.median_factor, 0),
      main_{.stage = "start"},
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

double Watchdog::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Watchdog::enter(std::string_view stage, i64 sample, std::string_view file) {
  const std::lock_guard lock(mutex_);
  main_since_ = now();
  main_.stage = stage;
  main_.sample = sample;
  main_.file = file;
  rule_.advanced(main_since_);
  if (!options_.stop) {
    reported_.reset();
  }
}

void Watchdog::step_done(double seconds) {
  const std::lock_guard lock(mutex_);
  rule_.step_took(seconds);
  rule_.advanced(now());
  if (!options_.stop) {
    reported_.reset();
  }
}

void Watchdog::set_inspector(std::function<std::vector<Activity>()> inspector) {
  const std::lock_guard lock(mutex_);
  inspector_ = std::move(inspector);
}

void Watchdog::throw_if_stalled() {
  const std::lock_guard lock(mutex_);
  if (options_.stop && reported_) {
    abandoned_ = true;  // noticed: the training thread takes it from here
    throw StalledError(message_);
  }
}

int Watchdog::stalls() const {
  const std::lock_guard lock(mutex_);
  return stalls_;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    // A tenth of the limit: a stall is named soon after it is one, and the clock is read rarely.
    const double nap = std::clamp(rule_.limit() / 10, 0.001, 5.0);
    const double before = now();
    changed_.wait_for(lock, std::chrono::duration<double>(nap));
    // A nap that long means that the whole process was stopped (SIGSTOP, a debugger, a suspended
    // machine): that is no stall of the run.
    const double overslept = now() - before - nap;
    if (overslept > std::max(1.0, nap)) {
      rule_.excuse(overslept);
    }
    const double silent = rule_.silent_for(now());
    if (!ending_ && !reported_ && silent > rule_.limit()) {
      report(silent, lock);
    }
    const bool hangs = options_.stop && reported_ && now() - *reported_ > options_.grace_seconds;
    if (!ending_ && hangs && !std::exchange(abandoned_, true) && options_.abandon) {
      lock.unlock();
      options_.abandon();
      lock.lock();
    }
  }
}

void Watchdog::report(double silent, std::unique_lock<std::mutex>& lock) {
  const double limit = rule_.limit();
  std::vector<Activity> activities = {main_};
  activities.front().seconds = now() - main_since_;
  const auto inspector = inspector_;
  // The loop may go on meanwhile; asking and writing take their time.
  lock.unlock();
  if (inspector) {
    try {
      const std::vector<Activity> others = inspector();
      activities.insert(activities.end(), others.begin(), others.end());
    } catch (const std::exception& e) {
      log::warning("watchdog: the other threads could not be asked ({})", e.what());
    }
  }
  std::string message =
      format("nothing has advanced for {} (limit {})", seconds_text(silent), seconds_text(limit));
  for (const Activity& a : activities) {
    message += "\n  " + sentence(a);
  }
  log::error("{}", message);
  if (!options_.report_path.empty()) {
    try {
      replace_file(options_.report_path, stall_text(silent, limit, activities));
    } catch (const StorageError& e) {
      log::warning("stall report not written: {}", e.what());
    }
  }
  lock.lock();
  ++stalls_;
  if (rule_.silent_for(now()) < silent) {
    return;  // it went on meanwhile
  }
  reported_ = now();
  message_ = std::move(message);
  // Whoever waits for a signal looks at throw_if_stalled() next.
  signals::wake();
}

}  // namespace penstock::io
