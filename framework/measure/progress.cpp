#include "framework/measure/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <utility>
#include <vector>

#include "framework/core/format.h"
#include "framework/core/log.h"
#include "framework/measure/clock.h"
#include "framework/measure/table.h"

namespace penstock::measure {
namespace {

// ---- text --------------------------------------------------------------------------------------

// A field of the line. Fields of a higher `rank` go first when the line is too long.
struct Field {
  std::string text;
  int rank = 0;
  const char* color = "";
};

// One column a character, and nothing that moves a cursor.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else if (byte < 0x80 || byte >= 0xC0) {  // bytes that continue a character add nothing
      out += '?';
    }
  }
  return out;
}

// 2.9e12 -> "2.9 TB/s": two digits are enough to watch.
std::string short_rate(double bytes_per_second) {
  return rate_cell(bytes_per_second);
}

std::string percent(double share) {
  return format(std::fabs(share) < 0.0995 ? "{:.1f}%" : "{:.0f}%", 100 * share);
}

std::string countdown(double seconds) {
  seconds = std::max(0.0, seconds);
  return seconds < 60 ? format("{:.0f} s", seconds) : seconds_text(seconds);
}

// "31.2/139 GiB": one unit for both.
std::string memory_text(double used, double total) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (total >= 1024 && unit + 1 < kUnits.size()) {
    total /= 1024;
    used /= 1024;
    ++unit;
  }
  return format("{:.3g}/{:.3g} {}", used, total, kUnits[unit]);
}

constexpr const char* kBold = "\x1b[1m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kPlain = "\x1b[0m";
constexpr std::string_view kBetween = " | ";

std::vector<Field> fields_of(const Progress& p) {
  std::vector<Field> fields;
  std::string head;
  if (p.epoch > 0) {
    head = p.epochs > 0 ? format("epoch {}/{}", p.epoch, p.epochs) : format("epoch {}", p.epoch);
    head +=
        format(" {:.0f}%", std::floor(100 * std::clamp(p.epoch_share.value_or(p.share), 0., 1.)));
  } else {
    head = format("{:.0f}%", std::floor(100 * std::clamp(p.share, 0., 1.)));
  }
  fields.push_back({head, 0, kBold});
  if (!p.activity.empty()) {
    fields.push_back({printable(p.activity), 2});
  }
  if (p.loss) {
    fields.push_back({format("loss {:.4g}", *p.loss), 2, std::isfinite(*p.loss) ? "" : kYellow});
  }
  if (p.samples_per_second) {
    fields.push_back({format("{} samples/s", count_text(*p.samples_per_second)), 3});
  }
  if (p.dram && p.dram->source != Source::kNone) {
    std::string text = format("DRAM {}", short_rate(p.dram->bytes_per_second));
    if (p.dram->share_of_achievable) {
      text += format(" {:.0f}%", 100 * *p.dram->share_of_achievable);
    } else if (p.dram->share_of_theoretical) {
      text += format(" {:.0f}% of peak", 100 * *p.dram->share_of_theoretical);
    }
    fields.push_back({text + " " + name_of(p.dram->source), 5});
  }
  if (p.data_wait) {
    fields.push_back(
        {format("wait {}", percent(*p.data_wait)), 4, *p.data_wait >= 0.05 ? kYellow : ""});
  }
  if (p.memory_used && p.memory_total) {
    fields.push_back({memory_text(*p.memory_used, *p.memory_total), 8});
  } else if (p.memory_used) {
    fields.push_back({bytes_text(*p.memory_used), 8});
  }
  if (p.batch > 0) {
    fields.push_back({format("batch {}x{} W{} D{}", p.batch, p.accumulate, p.workers, p.depth), 6});
  }
  if (!p.limit.empty()) {
    fields.push_back({printable(p.limit), 7});
  }
  if (p.seconds_left) {
    std::string text = format("ETA {}", countdown(*p.seconds_left));
    if (!p.ends.empty()) {
      text += format(" (ends {})", printable(p.ends));
    }
    fields.push_back({text, 1});
  }
  return fields;
}

std::size_t length_of(const std::vector<Field>& fields) {
  std::size_t length = 0;
  for (const Field& f : fields) {
    length += f.text.size();
  }
  return length + kBetween.size() * (fields.empty() ? 0 : fields.size() - 1);
}

}  // namespace

std::string progress_text(const Progress& progress, const ProgressStyle& style) {
  std::vector<Field> fields = fields_of(progress);
  if (style.width > 0) {
    const auto width = std::size_t(style.width);
    // The end's time of day is the first to go: it follows from the rest.
    if (length_of(fields) > width && progress.seconds_left) {
      fields.back().text = format("ETA {}", countdown(*progress.seconds_left));
    }
    while (length_of(fields) > width && fields.size() > 1) {
      fields.erase(
          std::max_element(fields.begin(), fields.end(),
                           [](const Field& a, const Field& b) { return a.rank < b.rank; }));
    }
    if (length_of(fields) > width) {
      fields.front().text.resize(width);
    }
  }
  std::string out;
  for (const Field& f : fields) {
    out += out.empty() ? "" : kBetween;
    out += style.color && *f.color != '\0' ? format("{}{}{}", f.color, f.text, kPlain) : f.text;
  }
  return out;
}

std::string time_of_day(double seconds) {
  const std::time_t now = std::time(nullptr);
  const std::time_t then = now + std::time_t(std::clamp(seconds, 0.0, 1e10));
  std::tm today{};
  std::tm day{};
  if (localtime_r(&now, &today) == nullptr || localtime_r(&then, &day) == nullptr) {
    return "";
  }
  const std::string text = format("{:02.0f}:{:02.0f}", double(day.tm_hour), double(day.tm_min));
  // Noon to noon, so that a change of daylight saving does not move the day.
  today.tm_hour = day.tm_hour = 12;
  today.tm_min = day.tm_min = today.tm_sec = day.tm_sec = 0;
  today.tm_isdst = day.tm_isdst = -1;
  const double days = std::round(std::difftime(std::mktime(&day), std::mktime(&today)) / 86400);
  return days > 0 ? format("{} +{:.0f}d", text, days) : text;
}

// ---- the estimate ------------------------------------------------------------------------------

EtaEstimator::EtaEstimator(const RunPlan& plan, double now, i64 done, i64 evaluations, i64 saves)
    : plan_(plan),
      begin_(now),
      last_(now),
      trained_at_(now),
      first_(done),
      position_(done),
      evaluation_{.count = evaluations},
      save_{.count = saves} {}

void EtaEstimator::revise(const RunPlan& plan) {
  plan_ = plan;
}

void EtaEstimator::trained(double now, i64 samples) {
  const double seconds = now - trained_at_ - other_since_;
  const double more = double(samples - position_);
  if (more <= 0 || seconds <= 0) {
    return;
  }
  // The first steps choose algorithms and fill queues: one in a hundred samples, 30 s at most.
  const bool warming = double(position_ - first_) < 0.01 * double(plan_.samples - first_) &&
                       train_seconds_ < 30 && steady_.seconds == 0;
  train_seconds_ += seconds;
  if (warming) {
    warm_up_.samples += more;
    warm_up_.seconds += seconds;
  } else {
    const double memory = std::max(60.0, 0.25 * train_seconds_);
    const double keep = std::exp(-seconds / memory);
    steady_.samples = keep * steady_.samples + more;
    steady_.seconds = keep * steady_.seconds + seconds;
  }
  position_ = samples;
  other_since_ = 0;
  last_ = trained_at_ = now;
}

void EtaEstimator::spent(OtherKind kind, double now, double seconds) {
  if (kind == OtherKind::kLog) {
    return;  // goes on with every sample, so it stays in their time
  }
  other_since_ += std::max(0.0, seconds);
  last_ = now;
  if (kind == OtherKind::kTuner) {
    return;
  }
  Kind& k = kind == OtherKind::kEvaluation ? evaluation_ : save_;
  ++k.count;
  ++k.timed;
  k.seconds += seconds;
  k.mean += (seconds - k.mean) / double(std::min<i64>(k.timed, 5));
}

void EtaEstimator::changed() {
  const auto speed = rate();
  warm_up_ = speed ? Stretch{*speed, 1} : Stretch{};
  steady_ = {};
}

std::optional<double> EtaEstimator::rate() const {
  const bool enough = steady_.seconds > 0 && (steady_.samples >= warm_up_.samples ||
                                              steady_.seconds >= 0.5 * warm_up_.seconds);
  const double samples = steady_.samples + (enough ? 0 : warm_up_.samples);
  const double seconds = steady_.seconds + (enough ? 0 : warm_up_.seconds);
  return seconds > 0 ? std::optional(samples / seconds) : std::nullopt;
}

double EtaEstimator::left_of(const Kind& kind, std::optional<i64> whole, double guess,
                             double train_left) const {
  if (whole) {
    const double left = double(std::max<i64>(0, *whole - kind.count));
    return left * (kind.timed > 0 ? kind.mean : guess);
  }
  return train_seconds_ > 0 ? kind.seconds / train_seconds_ * train_left : 0;
}

std::optional<double> EtaEstimator::seconds_left(double now) const {
  const auto speed = rate();
  if (!speed || *speed <= 0) {
    return std::nullopt;
  }
  const double train_left = double(std::max<i64>(0, plan_.samples - position_)) / *speed;
  // Forward alone takes about a third of forward and backward.
  const double evaluation_guess = double(plan_.evaluation_samples) / (3 * *speed);
  double left = train_left + left_of(evaluation_, plan_.evaluations, evaluation_guess, train_left) +
                left_of(save_, plan_.saves, plan_.save_seconds, train_left);
  // Whatever happens now is part of it.
  left -= now - last_;
  if (last_ > trained_at_) {
    // Samples trained since then are not told yet, only what was spent meanwhile.
    left -= std::max(0.0, last_ - trained_at_ - other_since_);
  }
  if (plan_.max_seconds) {
    left = std::min(left, *plan_.max_seconds - (now - begin_));
  }
  return std::max(0.0, left);
}

// ---- the line ----------------------------------------------------------------------------------

struct ProgressLine::State {
  ProgressOptions options;
  bool terminal = false;
  bool color = false;
  // Below: under the lock.
  std::optional<Progress> latest;
  std::optional<double> shown_at;
  double shown_share = 0;
  bool current = false;  // `latest` is what was shown last
  bool drawn = false;    // the terminal's last line is ours
  bool finished = false;

  double now() const { return options.clock ? options.clock() : monotonic_seconds(); }
  int width() const;
  void put(std::string_view text) const;
  void draw(bool last);
  bool is_due(double time, double share) const;
};

namespace {

// One lock for the line and for the log's hooks. It lives to the end of the process, since
// destructors may log.
std::mutex& lock_of_terminal() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
ProgressLine::State* g_active = nullptr;  // under the lock
// Hooks are installed once and stay; a log line that began before that has not locked.
thread_local bool t_hook_locked = false;

void before_log_line() {
  lock_of_terminal().lock();
  t_hook_locked = true;
  if (g_active != nullptr && g_active->drawn) {
    g_active->put("\r\x1b[K");
    g_active->drawn = false;
  }
}

void after_log_line() {
  if (!t_hook_locked) {
    return;
  }
  if (g_active != nullptr && g_active->latest && g_active->shown_at && !g_active->finished) {
    g_active->draw(false);
  }
  t_hook_locked = false;
  lock_of_terminal().unlock();
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return value != nullptr && *value != '\0';
}

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace

int ProgressLine::State::width() const {
  if (options.width) {
    return *options.width;
  }
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // A line that fills the last column wraps on some terminals.
  return known ? std::max(1, int(size.ws_col) - 1) : 79;
}

void ProgressLine::State::put(std::string_view text) const {
  if (options.draw) {
    options.draw(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
}

void ProgressLine::State::draw(bool last) {
  put(format("\r{}\x1b[K{}", progress_text(*latest, {.width = width(), .color = color}),
             last ? "\n" : ""));
  drawn = !last;
}

bool ProgressLine::State::is_due(double time, double share) const {
  if (options.quiet || finished) {
    return false;
  }
  if (!shown_at) {
    return true;  // a sign of life
  }
  const double elapsed = time - *shown_at;
  return terminal ? elapsed >= options.redraw
                  : elapsed >= options.plain_seconds && share >= shown_share + options.plain_share;
}

ProgressLine::ProgressLine(ProgressOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->terminal = state_->options.terminal.value_or(stderr_is_terminal());
  state_->color = state_->options.color.value_or(state_->terminal && !is_set("NO_COLOR"));
  if (state_->terminal && !state_->options.quiet) {
    static std::once_flag once;
    std::call_once(once, [] { log::set_terminal_hooks(before_log_line, after_log_line); });
    const std::lock_guard lock(lock_of_terminal());
    g_active = state_.get();
  }
}

ProgressLine::~ProgressLine() {
  try {
    finish();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the line is lost, the run is not
  }
  const std::lock_guard lock(lock_of_terminal());
  if (g_active == state_.get()) {
    g_active = nullptr;
  }
}

void ProgressLine::update(const Progress& progress) {
  std::string plain;
  {
    const std::lock_guard lock(lock_of_terminal());
    State& s = *state_;
    const double time = s.now();
    s.latest = progress;
    s.current = false;
    if (!s.is_due(time, progress.share)) {
      return;
    }
    s.shown_at = time;
    s.shown_share = progress.share;
    s.current = true;
    if (s.terminal) {
      s.draw(false);
      return;
    }
    plain = progress_text(progress);
  }
  // The log takes the lock itself.
  state_->options.line ? state_->options.line(plain) : log::write(log::Level::kInfo, plain);
}

bool ProgressLine::due() const {
  const std::lock_guard lock(lock_of_terminal());
  return state_->is_due(state_->now(), 1e9);
}

void ProgressLine::finish() {
  std::string plain;
  {
    const std::lock_guard lock(lock_of_terminal());
    State& s = *state_;
    const bool show = !s.finished && !s.options.quiet && s.latest.has_value();
    s.finished = true;
    if (!show) {
      return;
    }
    if (s.terminal) {
      s.draw(true);
      return;
    }
    if (s.current) {
      return;
    }
    s.current = true;
    plain = progress_text(*s.latest);
  }
  state_->options.line ? state_->options.line(plain) : log::write(log::Level::kInfo, plain);
}

}  // namespace penstock::measure
