#include "tests/tuner_sim/loader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

namespace penstock::tuner_sim {
namespace {

constexpr std::int64_t kWorkTable = 4096;
constexpr int kMostWorkers = 256;

struct LaterFirst {
  template <class Event>
  bool operator()(const Event& a, const Event& b) const {
    return a.due > b.due;
  }
};

// The cost of a sample is a property of the sample: a table indexed by a hash of its number.
std::size_t table_index(std::uint64_t seed, std::int64_t sample) {
  std::uint64_t z = (std::uint64_t(sample) + seed) * 0x9e3779b97f4a7c15ULL;
  z ^= z >> 29;
  z *= 0xbf58476d1ce4e5b9ULL;
  return std::size_t(z >> 52) % kWorkTable;
}

}  // namespace

LoaderSimulation::LoaderSimulation(const LoaderMachine& machine, const tuner::Settings& settings,
                                   std::uint64_t seed)
    : machine_(machine), settings_(settings), random_(seed), seed_(seed) {
  const auto ring =
      std::int64_t(std::bit_ceil(std::uint64_t(std::max<i64>(2, machine.ring_slots))));
  mask_ = ring - 1;
  done_.assign(std::size_t(ring), 0);
  fill_work_table();
  refresh_rates();
  admit();
}

void LoaderSimulation::machine_changed() {
  fill_work_table();
  refresh_rates();
}

void LoaderSimulation::fill_work_table() {
  Random draw(seed_ ^ 0x5eedULL);
  work_table_.resize(kWorkTable);
  double sum = 0;
  for (double& work : work_table_) {
    switch (machine_.work) {
      case Work::kConstant: work = 1; break;
      case Work::kLognormal: work = draw.lognormal(spread_of_cv(machine_.work_cv)); break;
      case Work::kRareSlow: work = draw.chance(machine_.work_rare) ? machine_.work_cv : 1; break;
      case Work::kBimodal: work = draw.chance(0.5) ? machine_.work_cv : 1; break;
    }
    sum += work;
  }
  for (double& work : work_table_) {
    work *= machine_.work_seconds * double(kWorkTable) / sum;
  }
}

void LoaderSimulation::refresh_rates() {
  for (int computing = 0; computing < 2; ++computing) {
    worker_rate_[computing].resize(kMostWorkers + 1);
    run_share_[computing].resize(kMostWorkers + 1);
  }
  step_rate_.resize(kMostWorkers + 1);
  for (int busy = 0; busy <= kMostWorkers; ++busy) {
    const double more = std::max(0, busy - 1);
    const double interference =
        1 + machine_.contention * more + machine_.coherence * more * double(busy);
    for (int computing = 0; computing < 2; ++computing) {
      const double threads = double(busy + (computing != 0 ? machine_.compute_threads : 0));
      const double crowding = std::max(1.0, threads / double(machine_.cores));
      run_share_[computing][std::size_t(busy)] = 1 / crowding;
      worker_rate_[computing][std::size_t(busy)] = 1 / (crowding * interference);
      if (computing != 0) {
        const double slow =
            machine_.compute_threads == 0 ? 1.0 : std::pow(crowding, 1 + machine_.lockstep);
        step_rate_[std::size_t(busy)] = 1 / (slow * (1 + machine_.bandwidth_drag * busy));
      }
    }
  }
}

double LoaderSimulation::work_of(std::int64_t sample) const {
  return work_table_[table_index(seed_, sample)];
}

double LoaderSimulation::fetch_of(std::int64_t sample) const {
  if (machine_.fetch_cv <= 0) {
    return machine_.fetch_seconds;
  }
  Random draw(seed_ ^ (std::uint64_t(sample) * 0x9e3779b97f4a7c15ULL));
  return machine_.fetch_seconds * draw.lognormal(spread_of_cv(machine_.fetch_cv));
}

std::int64_t LoaderSimulation::allowed_slots() const {
  if (settings_.workers == 0) {
    return settings_.batch;  // inline: only what is asked for now
  }
  return std::min(machine_.ring_slots, std::int64_t(settings_.depth + 1) * settings_.batch);
}

// With no workers the training thread does the work, one sample at a time, while it waits.
int LoaderSimulation::worker_limit() const {
  return settings_.workers > 0 ? std::min(settings_.workers, kMostWorkers) : (computing_ ? 0 : 1);
}

int LoaderSimulation::reader_limit() const {
  return settings_.workers > 0 ? std::max(1, settings_.io) : (computing_ ? 0 : 1);
}

void LoaderSimulation::admit() {
  const std::int64_t limit = freed_ + allowed_slots();
  const int readers = reader_limit();
  while (admitted_ < limit && (!fetches() || int(fetching_.size()) < readers)) {
    const auto slot = std::size_t(admitted_ & mask_);
    done_[slot] = 0;
    if (fetches()) {
      fetching_.push_back({reader_clock_ + fetch_of(admitted_), admitted_});
      std::push_heap(fetching_.begin(), fetching_.end(), LaterFirst{});
    } else {
      wait_for_worker(admitted_);
    }
    ++admitted_;
  }
  slots_high_ = std::max(slots_high_, admitted_ - freed_);
  start_decodes();
}

void LoaderSimulation::wait_for_worker(std::int64_t sample) {
  waiting_.push_back(sample);
  std::push_heap(waiting_.begin(), waiting_.end(), std::greater<>{});
}

// The earliest sample first.
void LoaderSimulation::start_decodes() {
  const int limit = worker_limit();
  while (int(decoding_.size()) < limit && !waiting_.empty()) {
    std::pop_heap(waiting_.begin(), waiting_.end(), std::greater<>{});
    const std::int64_t sample = waiting_.back();
    waiting_.pop_back();
    decoding_.push_back({worker_clock_ + work_of(sample), sample});
    std::push_heap(decoding_.begin(), decoding_.end(), LaterFirst{});
  }
}

void LoaderSimulation::finish_sample(std::int64_t sample) {
  done_[std::size_t(sample & mask_)] = 1;
  ++decoded_;
  while (ready_ < admitted_ && done_[std::size_t(ready_ & mask_)] != 0) {
    ++ready_;
  }
}

void LoaderSimulation::advance(double seconds) {
  const auto busy = decoding_.size();
  const int computing = computing_ ? 1 : 0;
  now_ += seconds;
  worker_clock_ += seconds * worker_rate_[computing][busy];
  busy_ += seconds * double(busy);
  run_delay_ += seconds * double(busy) * (1 - run_share_[computing][busy]);
  if (!fetching_.empty()) {
    const double share = std::min(1.0, double(machine_.fetch_parallel) / double(fetching_.size()));
    reader_clock_ += seconds * share;
    reading_ += seconds * double(fetching_.size());
  }
  if (pause_left_ > 0) {
    pause_left_ -= seconds;
    other_ += seconds;
    cycle_other_ += seconds;
  } else if (computing_) {
    step_left_ -= seconds * step_rate_[busy];
    compute_ += seconds;
  } else {
    stall_ += seconds;
  }
}

// Moves the clock to the next event and handles it; true when the consumer asks for a batch.
bool LoaderSimulation::next_event() {
  const auto busy = decoding_.size();
  const int computing = computing_ ? 1 : 0;
  double wait = 1e30;
  int kind = 0;
  if (busy > 0) {
    wait = (decoding_.front().due - worker_clock_) / worker_rate_[computing][busy];
    kind = 1;
  }
  if (!fetching_.empty()) {
    const double share = std::min(1.0, double(machine_.fetch_parallel) / double(fetching_.size()));
    const double until = (fetching_.front().due - reader_clock_) / share;
    if (until < wait) {
      wait = until;
      kind = 2;
    }
  }
  if (pause_left_ > 0) {
    if (pause_left_ <= wait) {
      wait = pause_left_;
      kind = 4;
    }
  } else if (computing_) {
    const double until = step_left_ / step_rate_[busy];
    if (until <= wait) {
      wait = until;
      kind = 3;
    }
  }
  check(kind != 0, "loader simulation: nothing can happen at {} s, sample {}", now_, position_);
  advance(std::max(0.0, wait));
  if (kind == 1) {
    std::pop_heap(decoding_.begin(), decoding_.end(), LaterFirst{});
    const std::int64_t sample = decoding_.back().sample;
    decoding_.pop_back();
    finish_sample(sample);
    start_decodes();
    return !computing_ && pause_left_ <= 0;
  }
  if (kind == 2) {
    std::pop_heap(fetching_.begin(), fetching_.end(), LaterFirst{});
    wait_for_worker(fetching_.back().sample);
    fetching_.pop_back();
    ++read_;
    admit();
    return false;
  }
  if (kind == 4) {
    pause_left_ = 0;
    return !computing_;
  }
  computing_ = false;
  delivered_samples_ += step_batch_;
  const double step = now_ - step_started_;
  step_sum_ += step;
  step_square_ += step * step;
  ++step_index_;
  if (machine_.pause_period > 0 && step_index_ % machine_.pause_period == 0) {
    pause_left_ = machine_.pause_seconds;
  }
  const double waiting = double(ready_ - position_) / double(settings_.batch);
  queue_low_ = std::min(queue_low_, waiting);
  queue_high_ = std::max(queue_high_, waiting);
  admit();  // inline loading starts when the consumer asks
  return pause_left_ <= 0;
}

// The consumer takes its batch when that is whole, frees the slots and starts the step.
void LoaderSimulation::deliver() {
  const std::int64_t batch = settings_.batch;
  if (ready_ - position_ < batch) {
    return;
  }
  position_ += batch;
  check(position_ <= ready_ && ready_ <= admitted_, "loader simulation: a sample was lost");
  freed_ = position_;
  const double cycle = now_ - last_delivery_ - cycle_other_;
  if (last_delivery_ > 0) {
    cycle_sum_ += cycle;
    cycle_square_ += cycle * cycle;
  }
  cycle_other_ = 0;
  last_delivery_ = now_;
  ++delivered_steps_;
  step_batch_ = batch;
  computing_ = true;
  step_started_ = now_;
  step_left_ = machine_.step_seconds(double(batch)) * random_.lognormal(machine_.step_cv);
  if (machine_.burst_period > 0 && step_index_ % machine_.burst_period == 0) {
    step_left_ *= machine_.burst_factor;
  }
  admit();
}

void LoaderSimulation::set(const tuner::Settings& settings) {
  settings_ = settings;
  admit();
}

tuner::Interval LoaderSimulation::run(std::int64_t steps) {
  busy_ = run_delay_ = reading_ = stall_ = compute_ = other_ = 0;
  decoded_ = read_ = delivered_steps_ = delivered_samples_ = 0;
  cycle_sum_ = cycle_square_ = step_sum_ = step_square_ = 0;
  queue_low_ = 1e30;
  queue_high_ = 0;
  const double started = now_;
  std::int64_t finished = 0;
  const std::int64_t first = step_index_;
  if (!computing_ && pause_left_ <= 0) {
    deliver();
  }
  while (finished < steps) {
    if (next_event()) {
      deliver();
    }
    finished = step_index_ - first;
  }
  busy_total_ += busy_;
  tuner::Interval interval;
  interval.seconds = now_ - started - other_;
  interval.steps = finished;
  interval.samples = delivered_samples_;
  interval.stall_seconds = stall_;
  const double count = double(std::max<std::int64_t>(1, finished));
  interval.step_seconds = step_sum_ / count;
  const double cycles = double(std::max<std::int64_t>(1, delivered_steps_));
  const double mean = cycle_sum_ / cycles;
  interval.cycle_cv =
      mean > 0 ? std::sqrt(std::max(0.0, cycle_square_ / cycles - mean * mean)) / mean : 0;
  interval.service_seconds = decoded_ > 0 ? busy_ / double(decoded_) : 0;
  interval.run_delay_share = busy_ > 0 ? run_delay_ / busy_ : 0;
  interval.fetch_seconds = read_ > 0 ? reading_ / double(read_) : 0;
  interval.queue_low = queue_low_ > 1e29 ? 0 : queue_low_;
  interval.queue_high = queue_high_;
  if (machine_.dram_share >= 0) {
    interval.dram_share = machine_.dram_share;
  }
  if (machine_.launch_share >= 0) {
    interval.launch_share = machine_.launch_share;
  }
  return interval;
}

}  // namespace penstock::tuner_sim
