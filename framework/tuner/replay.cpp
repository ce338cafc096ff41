#include "framework/tuner/replay.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include "framework/tuner/online.h"
#include "framework/tuner/policy.h"
#include "framework/tuner/probe.h"

namespace penstock::tuner {
namespace {

std::optional<double> optional_number(const Record& record, std::string_view key) {
  return record.has(key) ? std::optional(record.number(key)) : std::nullopt;
}

// A count from a log: whole, and within what the machines are made for.
i64 count(const Record& record, std::string_view key) {
  const i64 value = record.integer(key);
  if (value < 0 || value > (i64{1} << 48)) {
    throw DataError(
        format("{}: decision log: \"{}\" is {}, expected 0 to 2^48", record.origin(), key, value));
  }
  return value;
}

int small_count(const Record& record, std::string_view key) {
  const i64 value = count(record, key);
  if (value > (1 << 24)) {
    throw DataError(format("{}: decision log: \"{}\" is {}, expected at most 2^24", record.origin(),
                           key, value));
  }
  return int(value);
}

ProbeOptions probe_options(const Record& start) {
  ProbeOptions options;
  options.configured_batch = count(start, "configured_batch");
  options.smallest = count(start, "smallest");
  options.largest_fitting = count(start, "largest_fitting");
  options.free_bytes = count(start, "free_bytes");
  options.dataset_size = count(start, "dataset_size");
  options.ring_slots = count(start, "ring_slots");
  if (const i64 most = count(start, "auto_max"); most > 0) {
    options.auto_max = most;
  }
  options.max_scale.reset();
  if (const double scale = start.number("max_scale"); scale > 0) {
    options.max_scale = scale;
  }
  options.remaining_samples = count(start, "remaining_samples");
  options.min_steps = count(start, "min_steps");
  options.knee_share = start.number("knee_share");
  options.hold = start.flag("hold");
  options.exhaustive = start.flag("exhaustive");
  options.batch_norm = start.flag("batch_norm");
  options.budget_share = start.number("budget_share");
  options.budget_steps = small_count(start, "budget_steps");
  options.budget_seconds = start.number("budget_seconds");
  options.use_bandwidth = start.flag("use_bandwidth");
  options.dram_meter = start.flag("dram_meter");
  const std::vector<double>& batches = start.list("plan_batch");
  const auto column = [&](std::string_view key) -> const std::vector<double>& {
    const std::vector<double>& values = start.list(key);
    if (values.size() != batches.size()) {
      throw DataError(format("{}: decision log: \"{}\" has {} values, \"plan_batch\" {}",
                             start.origin(), key, values.size(), batches.size()));
    }
    return values;
  };
  const std::vector<double>& planned = column("plan_planned_bytes");
  const std::vector<double>& bytes = column("plan_bytes");
  const std::vector<double>& flops = column("plan_flops");
  const std::vector<double>& bound = column("plan_bound_seconds");
  const std::vector<double>& memory = column("plan_bound_memory_seconds");
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (!(batches[i] >= 1 && batches[i] < 0x1p48) || !(std::abs(planned[i]) < 0x1p62)) {
      throw DataError(format("{}: decision log: plan {} is not a batch", start.origin(), i));
    }
    options.plans.push_back({.batch = i64(batches[i]),
                             .planned_bytes = i64(planned[i]),
                             .bytes = bytes[i],
                             .flops = flops[i],
                             .bound_seconds = bound[i],
                             .bound_memory_seconds = memory[i]});
  }
  return options;
}

OnlineOptions online_options(const Record& start) {
  OnlineOptions options;
  options.start = {.batch = count(start, "batch"),
                   .workers = small_count(start, "workers"),
                   .depth = small_count(start, "depth"),
                   .io = small_count(start, "io")};
  options.pin_batch = start.flag("pin_batch");
  options.pin_workers = start.flag("pin_workers");
  options.pin_depth = start.flag("pin_depth");
  options.pin_io = start.flag("pin_io");
  options.max_workers = small_count(start, "max_workers");
  options.max_depth = small_count(start, "max_depth");
  options.max_io = small_count(start, "max_io");
  options.loader_cores = start.number("loader_cores");
  options.ring_slots = count(start, "ring_slots");
  options.use_bandwidth = start.flag("use_bandwidth");
  const std::vector<double>& batches = start.list("batches");
  const std::vector<double>& steps = start.list("batch_step_seconds");
  const std::vector<double>& bounds = start.list("batch_bound_seconds");
  if (steps.size() != batches.size() || bounds.size() != batches.size()) {
    throw DataError(
        format("{}: decision log: the lists of batches differ in length", start.origin()));
  }
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (!(batches[i] >= 1 && batches[i] < 0x1p48)) {
      throw DataError(
          format("{}: decision log: batch candidate {} is not a batch", start.origin(), i));
    }
    options.batches.push_back(
        {.batch = i64(batches[i]), .step_seconds = steps[i], .bound_seconds = bounds[i]});
  }
  return options;
}

ProbeObservation observation(const Record& seen) {
  return {.batch = count(seen, "batch"),
          .steps = small_count(seen, "steps"),
          .seconds = seen.number("seconds"),
          .seconds_used_total = seen.number("used"),
          .dram_share = optional_number(seen, "dram_share"),
          .ledger_share = optional_number(seen, "ledger_share"),
          .launch_share = optional_number(seen, "launch_share"),
          .stall_share = optional_number(seen, "stall_share"),
          .clock_change = optional_number(seen, "clock_change"),
          .failed_memory = seen.flag("failed_memory")};
}

Interval interval(const Record& seen) {
  Interval out;
  out.seconds = seen.number("seconds");
  out.steps = count(seen, "steps");
  out.samples = count(seen, "samples");
  out.stall_seconds = seen.number("stall_seconds");
  out.step_seconds = seen.number("step_seconds");
  out.cycle_cv = seen.number("cycle_cv");
  out.service_seconds = seen.number("service_seconds");
  out.run_delay_share = seen.number("run_delay_share");
  out.fetch_seconds = seen.number("fetch_seconds");
  out.queue_low = seen.number("queue_low");
  out.queue_high = seen.number("queue_high");
  out.disturbed = seen.flag("disturbed");
  out.dram_share = optional_number(seen, "dram_share");
  out.launch_share = optional_number(seen, "launch_share");
  out.host_bandwidth_share = optional_number(seen, "host_bandwidth_share");
  return out;
}

PolicyOptions policy_options(const Record& decision) {
  PolicyOptions options;
  options.policy =
      decision.text("policy") == "hold" ? BatchPolicy::kHold : BatchPolicy::kThroughput;
  const std::string& rule = decision.text("rule");
  options.rule = rule == name_of(LearningRateRule::kLinear)       ? LearningRateRule::kLinear
                 : rule == name_of(LearningRateRule::kSquareRoot) ? LearningRateRule::kSquareRoot
                                                                  : LearningRateRule::kNone;
  options.knee = count(decision, "knee");
  options.configured_batch = count(decision, "configured_batch");
  options.current_batch = count(decision, "current_batch");
  options.largest_fitting = count(decision, "largest_fitting");
  options.dataset_size = count(decision, "dataset_size");
  options.remaining_samples = count(decision, "remaining_samples");
  options.total_samples = count(decision, "total_samples");
  options.warmup_samples = count(decision, "warmup_samples");
  options.before_first_step = decision.flag("before_first_step");
  options.max_scale = decision.number("max_scale");
  options.min_steps = count(decision, "min_steps");
  if (const i64 most = count(decision, "auto_max"); most > 0) {
    options.auto_max = most;
  }
  options.batch_norm = decision.flag("batch_norm");
  options.bn_momentum = decision.number("bn_momentum");
  return options;
}

bool begins_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

// Feeds machines and compares what they write, record by record.
class Player {
 public:
  // False at the first difference.
  bool play(const Record& record) {
    const std::string& event = record.event();
    if (event == "policy.decision") {
      ++result_.machines;
      const PolicyOptions options = policy_options(record);
      return compare(record, to_record(options, decide_batch(options)));
    }
    if (event == "journal.session" || event == "journal.gap") {
      // Another process, or lines that are missing: machines that ran before end here.
      probe_.reset();
      online_.reset();
      probe_due_.clear();
      online_due_.clear();
      cut_ = event == "journal.gap";
      return true;
    }
    const bool of_probe = begins_with(event, "probe.");
    if (!of_probe && !begins_with(event, "online.")) {
      ++result_.skipped;
      return true;
    }
    // After a gap a machine can only be followed from its next start.
    if (cut_ && !(of_probe ? probe_.has_value() : online_.has_value()) && event != "probe.start" &&
        event != "online.start") {
      ++result_.skipped;
      return true;
    }
    std::deque<Record>& due = of_probe ? probe_due_ : online_due_;
    // An event that a machine wrote by itself is due now; an input makes it write first.
    if (is_input(event)) {
      if (!due.empty()) {
        return differ(record, due.front().to_line());
      }
      if (of_probe) {
        feed_probe(record);
      } else {
        feed_online(record);
      }
    }
    if (due.empty()) {
      return differ(record, "nothing");
    }
    const Record mine = std::move(due.front());
    due.pop_front();
    return compare(record, mine);
  }

  // What a machine still wanted to write when the log ended is no difference: a run may be killed.
  ReplayResult& result() { return result_; }

 private:
  static bool is_input(std::string_view event) {
    return event == "probe.start" || event == "probe.seen" || event == "online.start" ||
           event == "online.interval" || event == "online.limit";
  }

  void feed_probe(const Record& record) {
    if (record.event() == "probe.start") {
      ++result_.machines;
      probe_.emplace(probe_options(record));
    } else {
      if (!probe_) {
        throw DataError(
            format("{}: decision log: a probe's record before \"probe.start\"", record.origin()));
      }
      // Asked for something else, or done: the comparison says so, with nothing told.
      if (!probe_->done() && probe_->ask().batch == count(record, "batch")) {
        try {
          probe_->tell(observation(record));
        } catch (const OutOfMemory&) {
          // The run ended here as well.
        }
      } else {
        Record mine("probe.asks");
        mine.set("batch", probe_->done() ? 0 : probe_->ask().batch);
        probe_due_.push_back(std::move(mine));
      }
    }
    for (Record& mine : probe_->take_records()) {
      probe_due_.push_back(std::move(mine));
    }
  }

  void feed_online(const Record& record) {
    if (record.event() == "online.start") {
      ++result_.machines;
      online_.emplace(online_options(record));
    } else if (!online_) {
      throw DataError(
          format("{}: decision log: a tuner's record before \"online.start\"", record.origin()));
    } else if (record.event() == "online.limit") {
      try {
        online_->limit_batch(count(record, "largest"));
      } catch (const OutOfMemory&) {
        // The run ended here as well.
      }
    } else {
      online_->observe(interval(record));
    }
    for (Record& mine : online_->take_records()) {
      online_due_.push_back(std::move(mine));
    }
  }

  bool compare(const Record& logged, const Record& mine) {
    // Through text: numbers that are not finite are written as null.
    const std::string line = mine.to_line();
    if (logged.to_line() != line) {
      return differ(logged, line);
    }
    result_.decisions += is_input(logged.event()) ? 0 : 1;
    return true;
  }

  bool differ(const Record& logged, const std::string& mine) {
    result_.same = false;
    result_.origin = logged.origin();
    result_.expected = logged.to_line();
    result_.actual = mine;
    return false;
  }

  ReplayResult result_;
  std::optional<Probe> probe_;
  std::optional<OnlineTuner> online_;
  bool cut_ = false;  // a gap came before
  std::deque<Record> probe_due_;
  std::deque<Record> online_due_;
};

}  // namespace

ReplayResult replay(const std::vector<Record>& log) {
  Player player;
  for (const Record& record : log) {
    try {
      if (!player.play(record)) {
        break;
      }
    } catch (const DataError&) {
      throw;
    } catch (const Error& error) {
      // A machine refuses what no run could have given it: the log is at fault.
      throw DataError(format("{}: decision log: {}", record.origin(), error.what()));
    }
  }
  return player.result();
}

std::string to_string(const ReplayResult& result) {
  if (result.same) {
    return format("{} decisions of {} machines reproduced{}", result.decisions, result.machines,
                  result.skipped > 0 ? format("; {} other records", result.skipped) : "");
  }
  return format("{}: the log says {}\n  replayed: {}",
                result.origin.empty() ? "log" : result.origin, result.expected, result.actual);
}

}  // namespace penstock::tuner
