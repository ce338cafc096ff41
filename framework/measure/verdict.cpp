#include "framework/measure/verdict.h"

#include <algorithm>
#include <cmath>

#include "framework/core/format.h"

namespace penstock::measure {
namespace {

// Speed-up minus one when `saved` seconds of `wall` vanish.
double gain_of(double saved, double wall) {
  const double left = std::max(wall - std::max(0.0, saved), 1e-3 * wall);
  return wall / left - 1;
}

// A candidate verdict whose guard holds.
struct Candidate {
  Limit limit;
  double gain;
  std::string detail;
};

// The largest term of a wait, and its share of what the loader could tell.
struct Cause {
  const char* name;
  double share;
};
Cause main_cause(const WaitSplit& wait) {
  const std::array<std::pair<const char*, double>, 5> parts = {{{"fetch", wait.fetch},
                                                                {"decode", wait.decode},
                                                                {"queueing", wait.queueing},
                                                                {"scheduling", wait.scheduling},
                                                                {"order", wait.order}}};
  const auto largest = std::max_element(
      parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const double total = wait.total();
  return total > 0 ? Cause{largest->first, largest->second / total} : Cause{"", 0};
}

class Judge {
 public:
  Judge(const Situation& s, const Guards& g) : s_(s), g_(g), a_(s.account) {
    if (s.dram && s.dram->share_of_achievable) {
      dram_ = s.dram->share_of_achievable;
    }
    if (s.flops_per_second && s.flops_ceiling && *s.flops_ceiling > 0) {
      arithmetic_ = *s.flops_per_second / *s.flops_ceiling;
    }
  }

  Verdict run() {
    Verdict v;
    v.alternatives = alternatives();
    const std::string unstable = why_unstable();
    if (!unstable.empty()) {
      v.limit = Limit::kUnstable;
      v.detail = unstable;
      v.headline = format("No verdict: {}. Measure again when the machine is quiet.", unstable);
    } else {
      choose(v);
      remedies(v);
      v.headline = headline(v);
    }
    v.evidence = evidence();
    return v;
  }

 private:
  double wall() const { return a_.wall; }
  double share(double part) const { return a_.share(part); }

  // Seconds of kernel time that would go if DRAM were infinitely fast: all that arithmetic does not
  // need by itself. Likewise for arithmetic.
  std::optional<double> memory_saving() const {
    if (!dram_) {
      return std::nullopt;
    }
    const double most = arithmetic_ ? a_.kernels - *arithmetic_ * wall() : *dram_ * wall();
    return std::clamp(most, 0.0, a_.kernels);
  }
  std::optional<double> compute_saving() const {
    if (!arithmetic_) {
      return std::nullopt;
    }
    const double most = dram_ ? a_.kernels - *dram_ * wall() : *arithmetic_ * wall();
    return std::clamp(most, 0.0, a_.kernels);
  }
  // A loader that the step waits for works beside it: whatever the step saves it then waits longer,
  // and the run is no faster. Only the loader's own share can be won.
  bool loader_paces() const { return share(a_.data_wait) >= g_.data_wait; }
  // Likewise a host that launches too slowly, for kernels: they run while it launches.
  bool host_paces() const { return s_.settings.cuda && share(a_.launch_gap) >= g_.launch_gap; }
  // What `seconds` less of kernels, gaps or copies bring to the run.
  double step_saving(double seconds) const { return loader_paces() ? 0 : seconds; }
  double kernel_saving(double seconds) const {
    // The bus stays busy as long as before, beside kernels or after them.
    return host_paces() ? 0 : step_saving(std::min(seconds, wall() - a_.memcpy_total));
  }
  double input_gain() const {
    const double from_wait = gain_of(a_.data_wait, wall());
    const double from_twin = s_.end_to_end_per_synthetic && *s_.end_to_end_per_synthetic > 0
                                 ? 1 / *s_.end_to_end_per_synthetic - 1
                                 : 0;
    return std::max(from_wait, from_twin);
  }
  // Throughput at batch `to` over that at the present one, on t = a + b B.
  std::optional<double> batch_gain(i64 to) const {
    if (!s_.elasticity || s_.settings.batch <= 0 || *s_.elasticity >= 1) {
      return std::nullopt;
    }
    const double b = double(s_.settings.batch);
    const double half = b * *s_.elasticity / (1 - *s_.elasticity);
    return double(to) / (double(to) + half) * (b + half) / b - 1;
  }
  // A batch worth going to: the knee, at most what fits; none when that is hardly more.
  std::optional<i64> larger_batch() const {
    const i64 batch = s_.settings.batch;
    i64 target = s_.knee.value_or(2 * batch);
    if (s_.largest_batch) {
      target = std::min(target, *s_.largest_batch);
    }
    return batch > 0 && target >= batch + std::max<i64>(1, batch / 4) ? std::optional(target)
                                                                      : std::nullopt;
  }
  bool capacity_binds() const {
    if (!s_.largest_batch || !s_.elasticity || *s_.elasticity <= g_.capacity_elasticity) {
      return false;
    }
    const bool below_knee = s_.memory_ends_curve || (s_.knee && *s_.largest_batch < *s_.knee);
    // While the batch can still grow by a quarter, memory is not what limits.
    return below_knee && double(*s_.largest_batch) < 1.25 * double(s_.settings.batch);
  }

  std::string why_unstable() const {
    if (s_.clock_drop && *s_.clock_drop > g_.clock_drop) {
      return format("the SM clock fell by {:.0f} % while measuring", 100 * *s_.clock_drop);
    }
    if (s_.other_processes && *s_.other_processes > 0) {
      return format("{} other process{} on the device", *s_.other_processes,
                    *s_.other_processes == 1 ? " is" : "es are");
    }
    if (s_.confidence && *s_.confidence > g_.confidence) {
      return format("throughput is known only within +-{:.0f} %", 100 * *s_.confidence);
    }
    return "";
  }

  std::vector<Candidate> candidates() const {
    std::vector<Candidate> out;
    if (share(a_.data_wait) >= g_.data_wait ||
        (s_.end_to_end_per_synthetic && *s_.end_to_end_per_synthetic <= g_.end_to_end)) {
      out.push_back({Limit::kInput, input_gain(), main_cause(a_.wait).name});
    }
    const double device_time = a_.kernels + a_.memcpy_exposed;
    if (s_.settings.cuda && (share(a_.h2d_exposed) >= g_.h2d_exposed ||
                             (device_time > 0 && a_.memcpy_total >= g_.memcpy * device_time))) {
      out.push_back({Limit::kTransfer, gain_of(step_saving(a_.h2d_exposed), wall()), ""});
    }
    const bool capacity = capacity_binds();
    const bool short_kernels = !s_.mean_kernel_seconds || *s_.mean_kernel_seconds < g_.mean_kernel;
    const bool constant_time = !s_.elasticity || *s_.elasticity >= g_.launch_elasticity;
    if (s_.settings.cuda && share(a_.launch_gap) >= g_.launch_gap && short_kernels &&
        constant_time) {
      out.push_back({Limit::kLaunch, gain_of(step_saving(a_.launch_gap), wall()), ""});
    }
    if (dram_ && *dram_ >= g_.dram) {
      // Fixed: at least half of the bytes would not be moved again by a larger batch.
      const bool fixed = s_.fixed_bytes_share && *s_.fixed_bytes_share >= 0.5;
      if (!(fixed && capacity)) {
        out.push_back({Limit::kMemory, gain_of(kernel_saving(*memory_saving()), wall()),
                       s_.fixed_bytes_share ? (fixed ? "fixed" : "streaming") : ""});
      }
    }
    if (arithmetic_ && *arithmetic_ >= g_.flops &&
        (!s_.elasticity || *s_.elasticity < g_.compute_elasticity)) {
      out.push_back({Limit::kCompute, gain_of(kernel_saving(*compute_saving()), wall()), ""});
    }
    if (capacity) {
      const i64 knee = s_.knee && *s_.knee > s_.settings.batch ? *s_.knee : 4 * s_.settings.batch;
      out.push_back({Limit::kCapacity, loader_paces() ? 0 : batch_gain(knee).value_or(0), ""});
    }
    return out;
  }

  void choose(Verdict& v) const {
    const auto all = candidates();
    const auto best =
        std::max_element(all.begin(), all.end(),
                         [](const Candidate& x, const Candidate& y) { return x.gain < y.gain; });
    if (best == all.end()) {
      v.limit = Limit::kMixed;
      v.gain = v.alternatives.empty() ? 0 : v.alternatives.front().gain;
      return;
    }
    v.limit = best->limit;
    v.gain = best->gain;
    v.detail = best->detail;
  }

  std::vector<Counterfactual> alternatives() const {
    std::vector<Counterfactual> all;
    const auto add = [&](const char* part, double seconds, double saved) {
      if (share(seconds) >= 0.0005) {
        all.push_back({part, share(seconds), gain_of(saved, wall())});
      }
    };
    add("waiting for data", a_.data_wait, a_.data_wait);
    add("exposed copies", a_.h2d_exposed, step_saving(a_.h2d_exposed));
    add("launch gaps", a_.launch_gap, step_saving(a_.launch_gap));
    if (const auto saving = memory_saving()) {
      add("memory traffic", *saving, kernel_saving(*saving));
    }
    if (const auto saving = compute_saving()) {
      add("arithmetic", *saving, kernel_saving(*saving));
    }
    for (std::size_t k = 0; k < kOtherKinds; ++k) {
      add(name_of(OtherKind(k)), a_.other[k], a_.other[k]);
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& x, const auto& y) { return x.gain > y.gain; });
    return all;
  }

  std::vector<Number> evidence() const {
    std::vector<Number> out;
    const auto add = [&](const char* name, std::optional<double> value,
                         std::string (*show)(const std::optional<double>&)) {
      if (value) {
        out.push_back({name, show(value), *value});
      }
    };
    add("data wait", share(a_.data_wait), percent_cell);
    if (a_.wait.total() > 0) {
      add("of it fetching", share(a_.wait.fetch), percent_cell);
      add("of it decoding", share(a_.wait.decode), percent_cell);
      add("of it queueing", share(a_.wait.queueing), percent_cell);
      add("of it without a core", share(a_.wait.scheduling), percent_cell);
      add("of it out of order", share(a_.wait.order), percent_cell);
    }
    if (s_.settings.cuda) {
      add("exposed copies", share(a_.h2d_exposed), percent_cell);
      add("launch gaps", share(a_.launch_gap), percent_cell);
      if (a_.kernels > 0) {
        add("memcpy per device time", a_.memcpy_total / (a_.kernels + a_.memcpy_exposed),
            percent_cell);
      }
    }
    add("kernels", share(a_.kernels), percent_cell);
    add("DRAM of achievable", dram_, percent_cell);
    if (s_.dram) {
      out.push_back({format("DRAM traffic ({})", name_of(s_.dram->source)),
                     rate_cell(s_.dram->bytes_per_second), s_.dram->bytes_per_second});
    }
    add("arithmetic of achievable", arithmetic_, percent_cell);
    add("elasticity", s_.elasticity, percent_cell);
    add("bytes whatever the batch", s_.fixed_bytes_share, percent_cell);
    add("mean kernel", s_.mean_kernel_seconds, seconds_cell);
    add("throughput with data / without", s_.end_to_end_per_synthetic, percent_cell);
    add("SM clock drop", s_.clock_drop, percent_cell);
    return out;
  }

  // ---- remedies --------------------------------------------------------------------------------

  void remedies(Verdict& v) const {
    switch (v.limit) {
      case Limit::kInput: input_remedies(v); break;
      case Limit::kTransfer: transfer_remedies(v); break;
      case Limit::kLaunch: launch_remedies(v); break;
      case Limit::kMemory: memory_remedies(v); break;
      case Limit::kCompute:
        precision_remedy(v, v.gain);
        v.advice.emplace_back(
            "Layer sizes in multiples of 64 suit matrix units; the batch is large enough.");
        break;
      case Limit::kCapacity: capacity_remedies(v); break;
      case Limit::kMixed: mixed_remedies(v); break;
      case Limit::kUnstable: break;
    }
  }

  void input_remedies(Verdict& v) const {
    const Settings& now = s_.settings;
    const std::string& cause = v.detail;
    const auto more_workers = [&] {
      int wanted = now.wanted_workers.value_or(std::max(1, 2 * now.workers));
      wanted = std::min(wanted, now.most_workers.value_or(wanted));
      if (wanted > now.workers) {
        v.remedies.push_back({"loader.workers", format("{}", wanted),
                              format("more samples are made at once (now {})", now.workers),
                              v.gain});
      }
    };
    const auto deeper = [&] {
      int wanted = now.wanted_depth.value_or(2 * std::max(1, now.depth));
      wanted = std::min(wanted, now.most_depth.value_or(wanted));
      if (wanted > now.depth) {
        v.remedies.push_back({"loader.depth", format("{}", wanted),
                              format("slow samples are bridged (now {})", now.depth), v.gain});
      }
    };
    const auto cache = [&] {
      if (now.data_set_bytes && now.host_memory_room && now.cache_bytes < *now.data_set_bytes &&
          *now.data_set_bytes <= *now.host_memory_room) {
        v.remedies.push_back({"data.cache_bytes", format("{}", *now.data_set_bytes),
                              "the data set fits in memory and is then read once", v.gain});
      }
    };
    const auto augment = [&] {
      if (now.cuda && !now.augment_on_device) {
        v.remedies.push_back(
            {"data.augment", "device", "the device transforms instead of the cores", std::nullopt});
      }
    };
    if (cause == "fetch") {
      v.remedies.push_back(
          {"loader.io_concurrency", format("{}", 2 * std::max(1, now.io_concurrency)),
           format("more reads are under way at once (now {})", now.io_concurrency), v.gain});
      cache();
      more_workers();
    } else if (cause == "order") {
      deeper();
    } else if (cause == "scheduling") {
      augment();
      v.advice.emplace_back(
          "Workers are ready but get no core: give the loader cores, or the compute threads "
          "fewer.");
    } else {
      more_workers();
      augment();
      cache();
      if (cause.empty() || cause == "queueing") {
        deeper();
      }
    }
    if (cause == "decode") {
      v.advice.emplace_back(
          "Cheaper samples help as well: smaller images, a faster format, fewer transforms.");
    }
    v.advice.emplace_back(
        "A larger batch will not help: the loader makes as many samples a second at any batch.");
  }

  void transfer_remedies(Verdict& v) const {
    if (!s_.settings.transfer_uint8) {
      v.remedies.push_back({"data.transfer", "uint8", "a quarter of the bytes are copied",
                            gain_of(0.75 * a_.h2d_exposed, wall())});
    }
    if (!s_.settings.augment_on_device) {
      v.remedies.push_back({"data.augment", "device",
                            "samples travel as they are stored and grow on the device",
                            std::nullopt});
    }
    v.advice.emplace_back(
        "Copies overlap with compute only from pinned memory: check that locked memory is allowed "
        "(ulimit -l).");
    v.advice.emplace_back(
        "A memcpy share is traffic over the bus, not DRAM saturation; a larger batch copies as "
        "many bytes a sample.");
  }

  void launch_remedies(Verdict& v) const {
    if (!s_.settings.capture) {
      v.remedies.push_back({"train.capture", "true", "a captured step is launched as one", v.gain});
    }
    if (const auto batch = larger_batch()) {
      v.remedies.push_back({"train.batch", format("{}", *batch),
                            "the same launches do more work each", batch_gain(*batch)});
    }
    v.advice.emplace_back("Fewer, larger kernels: fused blocks, wider layers.");
  }

  void memory_remedies(Verdict& v) const {
    const bool fixed = v.detail == "fixed";
    if (fixed) {
      if (const auto batch = larger_batch()) {
        v.remedies.push_back({"train.batch", format("{}", *batch),
                              "weights and optimizer state are moved for more samples at once",
                              batch_gain(*batch)});
      }
      v.remedies.push_back({"train.accumulate",
                            format("{}", 2 * std::max<i64>(1, s_.settings.accumulate)),
                            "the optimizer runs half as often", std::nullopt});
    } else {
      v.advice.emplace_back("A larger batch will not help: each sample moves its own bytes.");
      if (s_.settings.recompute) {
        v.remedies.push_back({"model.recompute", "none",
                              "activations are read again instead of made again", std::nullopt});
      }
    }
    precision_remedy(v, gain_of(0.5 * memory_saving().value_or(0), wall()));
    if (!fixed) {
      v.advice.emplace_back("Fused blocks move fewer bytes.");
    }
  }

  void precision_remedy(Verdict& v, double gain) const {
    if (s_.settings.precision == Precision::kF32 || s_.settings.precision == Precision::kTf32) {
      v.remedies.push_back(
          {"train.precision", "bf16", "half the bytes, faster matrix units", gain});
    }
  }

  void capacity_remedies(Verdict& v) const {
    if (!s_.settings.recompute) {
      v.remedies.push_back({"model.recompute", "blocks",
                            "activations are made again instead of kept, so a larger batch fits",
                            v.gain});
    }
    precision_remedy(v, v.gain);
    v.remedies.push_back(
        {"train.accumulate", format("{}", 2 * std::max<i64>(1, s_.settings.accumulate)),
         "a larger effective batch, the optimizer runs half as often", std::nullopt});
  }

  // The first remedy of each of the two largest terms.
  void mixed_remedies(Verdict& v) const {
    for (std::size_t i = 0; i < std::min<std::size_t>(2, v.alternatives.size()); ++i) {
      const Counterfactual& c = v.alternatives[i];
      Verdict one{.gain = c.gain};
      if (c.part == "waiting for data") {
        one.detail = main_cause(a_.wait).name;
        input_remedies(one);
      } else if (c.part == "exposed copies") {
        transfer_remedies(one);
      } else if (c.part == "launch gaps") {
        launch_remedies(one);
      } else if (c.part == "memory traffic") {
        one.detail = s_.fixed_bytes_share.value_or(0) >= 0.5 ? "fixed" : "streaming";
        memory_remedies(one);
      } else if (c.part == "arithmetic") {
        precision_remedy(one, c.gain);
      }
      const auto known = [&](const Remedy& r) {
        return std::any_of(v.remedies.begin(), v.remedies.end(),
                           [&](const Remedy& other) { return other.key == r.key; });
      };
      if (!one.remedies.empty() && !known(one.remedies.front())) {
        v.remedies.push_back(one.remedies.front());
      }
    }
  }

  std::string headline(const Verdict& v) const {
    const std::string faster = format("{:.0f} % faster", 100 * v.gain);
    switch (v.limit) {
      case Limit::kInput:
        return format(
            "The {} waits {:.0f} % of the time for data{}. Without that wait the run would be {}.",
            s_.settings.cuda ? "GPU" : "compute", 100 * share(a_.data_wait),
            v.detail.empty() ? "" : ", mostly for " + cause_text(v.detail), faster);
      case Limit::kTransfer:
        return format(
            "Copies to the device stop it for {:.0f} % of the time. If they were hidden, the run "
            "would be {}.",
            100 * share(a_.h2d_exposed), faster);
      case Limit::kLaunch:
        return format(
            "The GPU is idle between kernels {:.0f} % of the time, because the host launches them "
            "too slowly. Without the gaps the run would be {}.",
            100 * share(a_.launch_gap), faster);
      case Limit::kMemory:
        return format(
            "DRAM bandwidth limits: {:.0f} % of what this memory can deliver is used{}. With "
            "memory out of the way the run would be {}.",
            100 * dram_.value_or(0),
            v.detail == "fixed"
                ? ", mostly for weights and optimizer state that are moved whatever the batch"
            : v.detail == "streaming" ? ", mostly for activations, as many for every sample"
                                      : "",
            faster);
      case Limit::kCompute:
        return format(
            "Arithmetic limits: {:.0f} % of what the matrix units reach in {} is used. The batch "
            "is large enough.",
            100 * arithmetic_.value_or(0), name_of(s_.settings.precision));
      case Limit::kCapacity:
        return format(
            "Memory ends the batch at {} before it pays: {:.0f} % of a step is fixed cost. With "
            "room for a larger batch the run would be {}.",
            s_.largest_batch.value_or(0), 100 * s_.elasticity.value_or(0), faster);
      case Limit::kMixed: {
        std::string text = "Nothing limits alone.";
        for (std::size_t i = 0; i < std::min<std::size_t>(2, v.alternatives.size()); ++i) {
          text +=
              format(" Without {} the run would be {:.0f} % faster{}", v.alternatives[i].part,
                     100 * v.alternatives[i].gain, i == 0 && v.alternatives.size() > 1 ? ";" : ".");
        }
        return text;
      }
      case Limit::kUnstable: return "";
    }
    return "";
  }

  static std::string cause_text(const std::string& cause) {
    return cause == "fetch"        ? "reading"
           : cause == "decode"     ? "decoding"
           : cause == "queueing"   ? "a free worker"
           : cause == "scheduling" ? "a core"
                                   : "slow samples ahead of ready ones";
  }

  const Situation& s_;
  const Guards& g_;
  const StepAccount& a_;
  std::optional<double> dram_;        // share of achievable
  std::optional<double> arithmetic_;  // share of the matmul ceiling
};

}  // namespace

const char* name_of(Limit limit) {
  switch (limit) {
    case Limit::kInput: return "input-bound";
    case Limit::kTransfer: return "transfer-bound";
    case Limit::kLaunch: return "launch-bound";
    case Limit::kMemory: return "memory-bandwidth-bound";
    case Limit::kCompute: return "compute-bound";
    case Limit::kCapacity: return "capacity-bound";
    case Limit::kMixed: return "mixed";
    case Limit::kUnstable: return "unstable";
  }
  return "?";
}

const char* word_of(Limit limit) {
  switch (limit) {
    case Limit::kInput: return "input";
    case Limit::kTransfer: return "transfer";
    case Limit::kLaunch: return "launch";
    case Limit::kMemory: return "memory";
    case Limit::kCompute: return "compute";
    case Limit::kCapacity: return "capacity";
    case Limit::kMixed: return "mixed";
    case Limit::kUnstable: return "unstable";
  }
  return "?";
}

std::string Verdict::name() const {
  return detail.empty() || limit == Limit::kUnstable ? name_of(limit)
                                                     : format("{} ({})", name_of(limit), detail);
}

std::optional<Verdict> judge(const Situation& situation, const Guards& guards) {
  if (!(situation.account.wall > 0) || situation.account.steps == 0) {
    return std::nullopt;
  }
  return Judge(situation, guards).run();
}

std::vector<std::string> remedy_keys() {
  return {"loader.workers",   "loader.depth",    "loader.io_concurrency", "loader.max_bytes",
          "data.cache_bytes", "data.transfer",   "data.augment",          "train.batch",
          "train.accumulate", "train.precision", "train.capture",         "model.recompute"};
}

TextTable alternatives_table(const Verdict& verdict) {
  TextTable table{
      .columns = {{"if this vanished", Align::kLeft}, {"share of time"}, {"faster by"}}};
  for (const Counterfactual& c : verdict.alternatives) {
    table.rows.push_back({c.part, percent_cell(c.share), percent_cell(c.gain)});
  }
  return table;
}

TextTable evidence_table(const Verdict& verdict) {
  TextTable table{.columns = {{"measured", Align::kLeft}, {"value"}}};
  for (const Number& n : verdict.evidence) {
    table.rows.push_back({n.name, n.value});
  }
  return table;
}

}  // namespace penstock::measure
