#include "framework/measure/account.h"

#include <algorithm>
#include <numeric>

#include "framework/core/format.h"

namespace penstock::measure {

WaitSplit WaitSplit::scaled(double by) const {
  return {fetch * by, decode * by, queueing * by, scheduling * by, order * by};
}

WaitSplit& WaitSplit::operator+=(const WaitSplit& more) {
  fetch += more.fetch;
  decode += more.decode;
  queueing += more.queueing;
  scheduling += more.scheduling;
  order += more.order;
  return *this;
}

const char* name_of(OtherKind kind) {
  switch (kind) {
    case OtherKind::kEvaluation: return "evaluation";
    case OtherKind::kCheckpoint: return "checkpoint";
    case OtherKind::kLog: return "log";
    case OtherKind::kTuner: return "tuner";
  }
  return "?";
}

double StepAccount::other_total() const {
  return std::accumulate(other.begin(), other.end(), 0.0);
}

double StepAccount::accounted() const {
  return data_wait + h2d_exposed + launch_gap + kernels + other_total();
}

StepAccount& StepAccount::operator+=(const StepAccount& more) {
  wall += more.wall;
  data_wait += more.data_wait;
  wait += more.wait;
  h2d_exposed += more.h2d_exposed;
  launch_gap += more.launch_gap;
  kernels += more.kernels;
  for (std::size_t k = 0; k < kOtherKinds; ++k) {
    other[k] += more.other[k];
  }
  unaccounted += more.unaccounted;
  hidden_wait += more.hidden_wait;
  memcpy_total += more.memcpy_total;
  memcpy_exposed += more.memcpy_exposed;
  busy += more.busy;
  steps += more.steps;
  samples += more.samples;
  split_age = more.split_age ? more.split_age : split_age;
  return *this;
}

Account::Account(Timeline timeline, double begin)
    : timeline_(timeline), begin_(begin), position_(begin) {
  cuts_.reserve(64);
}

void Account::waited(const Span& next, const WaitSplit& split) {
  if (next.length() > 0) {
    waits_.push_back({.span = next, .split = split});
  }
}

void Account::spent(OtherKind kind, const Span& span) {
  if (span.length() > 0) {
    others_.push_back({.span = span, .kind = kind});
  }
}

void Account::copied(double issued, const Span& copy) {
  sum_.memcpy_total += copy.length();
  copies_.push_back({.span = {std::min(issued, copy.begin), copy.end}, .copy_begin = copy.begin});
}

void Account::traced(const KernelSplit& split) {
  if (split.pair > 0) {
    split_ = split;
  }
}

// Cuts the gap wherever any span begins or ends; each piece then belongs to one term as a whole.
void Account::idle(const Span& gap) {
  cuts_.assign({gap.begin, gap.end});
  const auto cut = [&](double at) {
    if (at > gap.begin && at < gap.end) {
      cuts_.push_back(at);
    }
  };
  for (const auto* spans : {&waits_, &others_, &copies_}) {
    for (const Pending& p : *spans) {
      cut(p.span.begin);
      cut(p.span.end);
      cut(p.copy_begin);
    }
  }
  std::sort(cuts_.begin(), cuts_.end());
  const auto covering = [](std::deque<Pending>& spans, double at) -> Pending* {
    for (Pending& p : spans) {
      if (p.span.begin <= at && at < p.span.end) {
        return &p;
      }
    }
    return nullptr;
  };
  for (std::size_t i = 0; i + 1 < cuts_.size(); ++i) {
    const double length = cuts_[i + 1] - cuts_[i];
    const double middle = cuts_[i] + 0.5 * length;
    if (Pending* wait = covering(waits_, middle)) {
      wait->fresh += length;
    } else if (const Pending* spent = covering(others_, middle)) {
      sum_.other[std::size_t(spent->kind)] += length;
    } else if (const Pending* copy = covering(copies_, middle)) {
      sum_.h2d_exposed += length;
      sum_.memcpy_exposed += middle >= copy->copy_begin ? length : 0;
    } else if (timeline_ == Timeline::kDevice) {
      sum_.launch_gap += length;
    }
  }
  for (Pending& p : waits_) {
    if (p.fresh > 0) {
      const double known = p.split.total();
      sum_.data_wait += p.fresh;
      sum_.wait += p.split.scaled(p.fresh / std::max(known, p.span.length()));
      p.charged += p.fresh;
      p.fresh = 0;
    }
  }
}

void Account::retire(double before) {
  while (!waits_.empty() && waits_.front().span.end <= before) {
    sum_.hidden_wait += waits_.front().span.length() - waits_.front().charged;
    waits_.pop_front();
  }
  while (!others_.empty() && others_.front().span.end <= before) {
    others_.pop_front();
  }
  while (!copies_.empty() && copies_.front().span.end <= before) {
    copies_.pop_front();
  }
}

void Account::ran(const Span& step, i64 samples) {
  if (step.begin > position_) {
    idle({position_, step.begin});
  }
  // Events of one stream cannot overlap; a mapping that says so is cut, not counted twice.
  const double busy = std::max(0.0, step.end - std::max(step.begin, position_));
  double kernels = busy;
  if (split_) {
    kernels = busy * std::clamp(split_->kernels / split_->pair, 0.0, 1.0);
    sum_.memcpy_total += busy * std::clamp(split_->copies / split_->pair, 0.0, 1.0);
    sum_.split_age = std::max(0.0, step.end - split_->traced_at);
  }
  sum_.kernels += kernels;
  sum_.launch_gap += busy - kernels;
  sum_.busy += busy;
  sum_.steps += 1;
  sum_.samples += samples;
  position_ = std::max(position_, step.end);
  retire(position_);
}

StepAccount Account::close(std::optional<double> end) {
  const double closed = end.value_or(position_);
  StepAccount account = sum_;
  account.wall = closed - begin_;
  account.unaccounted = account.wall - account.accounted();
  sum_ = {};
  begin_ = closed;
  position_ = closed;
  return account;
}

std::string describe(const StepAccount& a) {
  std::string text;
  const auto term = [&](const char* name, double seconds, const std::string& more = "") {
    if (a.share(seconds) >= 0.0005 || a.share(seconds) <= -0.0005) {
      text +=
          format("{}{} {:.1f} %{}", text.empty() ? "" : ", ", name, 100 * a.share(seconds), more);
    }
  };
  std::string causes;
  const auto cause = [&](const char* name, double seconds) {
    if (a.share(seconds) >= 0.0005) {
      causes += format("{}{} {:.1f}", causes.empty() ? " (" : ", ", name, 100 * a.share(seconds));
    }
  };
  cause("fetch", a.wait.fetch);
  cause("decode", a.wait.decode);
  cause("queueing", a.wait.queueing);
  cause("scheduling", a.wait.scheduling);
  cause("order", a.wait.order);
  term("data wait", a.data_wait, causes.empty() ? "" : causes + ")");
  term("exposed copies", a.h2d_exposed);
  term("launch gaps", a.launch_gap);
  term("kernels", a.kernels);
  for (std::size_t k = 0; k < kOtherKinds; ++k) {
    term(name_of(OtherKind(k)), a.other[k]);
  }
  term("unaccounted", a.unaccounted);
  return text;
}

}  // namespace penstock::measure
