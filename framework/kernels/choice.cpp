#include "framework/kernels/choice.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "framework/core/log.h"

namespace penstock::kernels {
namespace {

std::mutex g_mutex;
std::map<std::string, Choice> g_choices;
std::atomic<i64> g_limit{i64(256) << 20};
std::atomic<bool> g_deterministic{false};
std::atomic<i64> g_made{0};
thread_local bool t_untimed = false;
std::string g_file;

std::uint64_t checksum(const std::string& text) {  // FNV-1a
  std::uint64_t h = 0xcbf29ce484222325u;
  for (const char c : text) {
    h = (h ^ std::uint8_t(c)) * 0x100000001b3u;
  }
  return h;
}

std::string to_hex(const std::string& bytes) {
  static constexpr const char* kDigits = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex += kDigits[std::uint8_t(c) >> 4];
    hex += kDigits[std::uint8_t(c) & 15];
  }
  return hex;
}

std::optional<std::string> from_hex(const std::string& hex) {
  if (hex.size() % 2 != 0) {
    return std::nullopt;
  }
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    int value = 0;
    for (std::size_t k = i; k < i + 2; ++k) {
      const char c = hex[k];
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) {
        return std::nullopt;
      }
      value = value * 16 + digit;
    }
    bytes += char(value);
  }
  return bytes;
}

std::string line_of(const std::string& key, const Choice& c) {
  const std::string body =
      format("{} {} {} {}", to_hex(key), to_hex(c.algorithm), c.workspace, c.milliseconds);
  return format("{} {}\n", body, checksum(body));
}

}  // namespace

i64 workspace_limit() { return g_limit; }
void set_workspace_limit(i64 bytes) { g_limit = bytes; }
bool deterministic() { return g_deterministic; }
void set_deterministic(bool on) { g_deterministic = on; }

UntimedScope::UntimedScope() : before_(std::exchange(t_untimed, true)) {}
UntimedScope::~UntimedScope() { t_untimed = before_; }
bool untimed() { return t_untimed || g_deterministic; }

std::optional<Choice> find_choice(const std::string& key) {
  const std::lock_guard lock(g_mutex);
  const auto it = g_choices.find(key);
  return it != g_choices.end() ? std::optional(it->second) : std::nullopt;
}

void keep_choice(const std::string& key, const Choice& choice) {
  const std::lock_guard lock(g_mutex);
  g_choices[key] = choice;
  ++g_made;
  if (g_file.empty()) {
    return;
  }
  // One write in append mode: lines of several processes do not mix.
  const int fd = open(g_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const std::string line = line_of(key, choice);
  if (fd < 0 || write(fd, line.data(), line.size()) != ssize_t(line.size())) {
    log::warn_once("choice file",
                   format("{}: algorithm choices cannot be kept; the next run chooses again", g_file));
  }
  if (fd >= 0) {
    close(fd);
  }
}

void use_choice_file(const std::string& file) {
  const std::lock_guard lock(g_mutex);
  g_file = file;
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    const std::size_t last = line.rfind(' ');
    if (line.size() > 65536 || last == std::string::npos ||
        line.substr(last + 1) != format("{}", checksum(line.substr(0, last)))) {
      continue;  // torn or damaged
    }
    std::istringstream words(line);
    std::string key;
    std::string algorithm;
    Choice c;
    words >> key >> algorithm >> c.workspace >> c.milliseconds;
    const auto key_bytes = from_hex(key);
    const auto algorithm_bytes = from_hex(algorithm);
    if (words && key_bytes && algorithm_bytes && c.workspace >= 0 && c.workspace <= g_limit) {
      c.algorithm = *algorithm_bytes;
      g_choices[*key_bytes] = c;
    }
  }
}

i64 choices_made() { return g_made; }

void forget_choices() {
  const std::lock_guard lock(g_mutex);
  g_choices.clear();
}

}  // namespace penstock::kernels
