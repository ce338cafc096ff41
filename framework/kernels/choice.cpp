#include "framework/kernels/choice.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace penstock::kernels {
namespace {

std::mutex g_mutex;
std::map<std::string, Choice> g_choices;
std::atomic<i64> g_limit{i64(256) << 20};
std::atomic<bool> g_deterministic{false};
std::atomic<i64> g_made{0};
thread_local bool t_untimed = false;

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
}

i64 choices_made() { return g_made; }

void forget_choices() {
  const std::lock_guard lock(g_mutex);
  g_choices.clear();
}

}  // namespace penstock::kernels
