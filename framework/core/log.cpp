#include "framework/core/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

namespace penstock::log {
namespace {

std::atomic<void (*)()> g_before{nullptr};
std::atomic<void (*)()> g_after{nullptr};

class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    if (auto* before = g_before.load()) {
      before();
    }
    std::fwrite(text.data(), 1, text.size(), stderr);
    if (auto* after = g_after.load()) {
      after();
    }
  }
  void flush_() override { std::fflush(stderr); }
};

struct State {
  std::mutex mutex;
  std::string prefix;
  std::set<std::string, std::less<>> seen;
  std::shared_ptr<spdlog::logger> logger;
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> file;

  State() {
    logger = std::make_shared<spdlog::logger>("penstock", std::make_shared<StderrSink>());
    // A failing log write must not end a run, and must not print per line either.
    logger->set_error_handler([](const std::string&) {});
    logger->flush_on(spdlog::level::info);
    apply_pattern();
  }
  void apply_pattern() {
    logger->set_pattern(prefix.empty() ? "%H:%M:%S %l: %v" : "%H:%M:%S [" + prefix + "] %l: %v");
  }
};

State& state() {
  static auto* s = new State;  // alive until the process ends: destructors may log
  return *s;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_level(Level level) {
  state().logger->set_level(to_spdlog(level));
}

void set_prefix(std::string_view prefix) {
  const std::lock_guard lock(state().mutex);
  state().prefix = prefix;
  state().apply_pattern();
}

void set_file(const std::string& path) {
  const std::lock_guard lock(state().mutex);
  auto& sinks = state().logger->sinks();
  if (state().file) {
    std::erase(sinks, state().file);
    state().file.reset();
  }
  if (!path.empty()) {
    try {
      state().file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false);
      state().file->set_pattern("%Y-%m-%dT%H:%M:%S%z %l: %v");
      sinks.push_back(state().file);
    } catch (const std::exception& e) {
      state().logger->warn("log file not opened, logging to stderr only: {}", e.what());
    }
  }
}

void set_terminal_hooks(void (*before)(), void (*after)()) {
  g_before = before;
  g_after = after;
}

void write(Level level, std::string_view message) {
  state().logger->log(to_spdlog(level), "{}", message);
}

void warn_once(std::string_view key, std::string_view message) {
  {
    const std::lock_guard lock(state().mutex);
    if (!state().seen.emplace(key).second) {
      return;
    }
  }
  write(Level::kWarning, message);
}

}  // namespace penstock::log
