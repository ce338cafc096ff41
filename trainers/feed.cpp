#include "trainers/feed.h"

#include <algorithm>

#include "framework/measure/clock.h"

namespace penstock::trainers {
namespace {

using measure::monotonic_seconds;

void merge(data::LoaderStats& into, const data::LoaderStats& s) {
  if (into.calls == 0) {
    into.low = s.low;
    into.high = s.high;
  } else if (s.calls > 0) {
    into.low = std::min(into.low, s.low);
    into.high = std::max(into.high, s.high);
  }
  into.samples += s.samples;
  into.service_seconds += s.service_seconds;
  into.cpu_seconds += s.cpu_seconds;
  into.fetched += s.fetched;
  into.fetch_seconds += s.fetch_seconds;
  into.calls += s.calls;
  into.wait_seconds += s.wait_seconds;
  into.wait.fetch += s.wait.fetch;
  into.wait.decode += s.wait.decode;
  into.wait.queueing += s.wait.queueing;
  into.wait.scheduling += s.wait.scheduling;
  into.wait.order += s.wait.order;
  into.bad += s.bad;
}

}  // namespace

Feed::Feed(data::Loader& loader, StepRunner& runner, FeedOptions options)
    : loader_(loader), runner_(runner), options_(std::move(options)) {}

data::Batch Feed::take(i64 count) {
  give_back(held_.size() >= 2);
  const double begin = monotonic_seconds();
  data::Batch batch = loader_.next(count);
  const double end = monotonic_seconds();
  const data::LoaderStats s = loader_.take_stats();
  merge(stats_, s);
  if (s.wait_seconds > 0) {
    waits_.push_back({{begin, end},
                      {.fetch = s.wait.fetch,
                       .decode = s.wait.decode,
                       .queueing = s.wait.queueing,
                       .scheduling = s.wait.scheduling,
                       .order = s.wait.order}});
  }
  return batch;
}

void Feed::give_back(bool wait_for_one) {
  while (!held_.empty()) {
    if (!runner_.copied(held_.front().ticket)) {
      if (!wait_for_one) {
        return;
      }
      runner_.wait_copied(held_.front().ticket);
    }
    wait_for_one = false;
    loader_.release(held_.front().batch);
    held_.pop_front();
  }
}

void Feed::drain() {
  while (!held_.empty()) {
    give_back(true);
  }
}

Feed::Taken Feed::step(const StepShape& shape) {
  Taken taken;
  i64 left = std::min(shape.samples(), loader_.left_in_epoch());
  if (left <= 0) {
    return taken;
  }
  // Batch norm has no variance over one sample: it joins the step before.
  if (options_.join_single && loader_.left_in_epoch() == left + 1) {
    ++left;
  }
  taken.samples = left;
  taken.usual = left == shape.samples();
  // The loss denominator must be known before the first micro-batch runs.
  std::vector<data::Batch> ahead;
  if (options_.targets_per_sample > 0) {
    taken.targets = left * options_.targets_per_sample;
  } else {
    for (i64 rest = left; rest > 0;) {
      const i64 joined = rest == shape.micro + 1 ? 1 : 0;
      ahead.push_back(take(std::min(rest, shape.micro + joined)));
      taken.targets += ahead.back().targets;
      rest -= ahead.back().count;
    }
  }
  bool first = true;
  std::size_t index = 0;
  StepInputs inputs;
  for (i64 rest = left; rest > 0;) {
    const i64 joined = options_.join_single && rest == shape.micro + 1 ? 1 : 0;
    data::Batch batch = ahead.empty() ? take(std::min(rest, shape.micro + joined))
                                      : std::move(ahead[index++]);
    check(batch.count > 0, "feed: the loader ended within a step");
    if (first) {
      taken.position = batch.position;
      taken.epoch = batch.epoch;
      inputs = options_.inputs(batch.position, left);
      inputs.inverse_targets = taken.targets > 0 ? 1.0F / float(taken.targets) : 0.0F;
    }
    inputs.position = batch.position;
    taken.ends_epoch = batch.ends_epoch;
    taken.next = batch.position + batch.count * i64(inputs.stride);
    rest -= batch.count;
    const i64 count = batch.count;
    const i64 ticket = runner_.load(batch);
    held_.push_back({std::move(batch), ticket});
    runner_.run({.count = count,
                 .first = first,
                 .usual = !options_.eager && count == shape.micro,
                 .inputs = inputs});
    first = false;
  }
  runner_.finish(taken.samples, taken.targets);
  return taken;
}

data::LoaderStats Feed::take_loader_stats() { return std::exchange(stats_, {}); }
std::vector<Feed::Wait> Feed::take_waits() { return std::exchange(waits_, {}); }

}  // namespace penstock::trainers
