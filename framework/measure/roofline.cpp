#include "framework/measure/roofline.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "framework/core/check.h"

namespace penstock::measure {
namespace {

// The line through two measurements. Where it would be negative at 0 or fall, the nearest line that
// is neither: counts that are not affine (a reduction's partial sums) stay on the safe side.
Affine line(double small, double small_batch, double large, double large_batch) {
  const double slope = (large - small) / (large_batch - small_batch);
  if (slope <= 0) {
    return {std::max(small, large), 0};
  }
  const double fixed = small - slope * small_batch;
  // Exactly linear counts leave a rounding remainder, which is no fixed cost.
  return fixed > 1e-9 * large ? Affine{fixed, slope} : Affine{0, large / large_batch};
}

struct OpTimes {
  double memory = 0;
  double compute = 0;
  double launch = 0;
  double longest() const { return std::max({memory, compute, launch}); }
};

OpTimes op_times(const OpCost& op, double batch, const Roof& roof) {
  OpTimes t{.memory = op.bytes(batch) * roof.bytes_scale / roof.bytes_per_second,
            .launch = op.kernels.at(batch) * roof.kernel_seconds};
  if (roof.flops_per_second > 0) {
    t.compute = op.flops.at(batch) / roof.flops_per_second;
  }
  return t;
}

// Smallest batch in [1, largest] for which `holds`, which once true stays true; multiples of 8 from
// 8 on. None when it never holds.
std::optional<i64> smallest(i64 largest, const std::function<bool(i64)>& holds) {
  if (largest < 1 || !holds(largest)) {
    return std::nullopt;
  }
  i64 below = 0;
  i64 found = largest;
  while (found - below > 1) {
    const i64 middle = below + (found - below) / 2;
    (holds(middle) ? found : below) = middle;
  }
  return found <= 8 ? found : std::min(largest, (found + 7) / 8 * 8);
}

}  // namespace

double OpCost::bytes(double batch) const {
  double sum = 0;
  for (std::size_t c = 0; c < std::size_t(kMemoryClasses); ++c) {
    sum += read[c].at(batch) + written[c].at(batch);
  }
  return sum;
}

double StepCost::bytes(double batch) const {
  double sum = 0;
  for (const OpCost& op : ops) {
    sum += op.bytes(batch);
  }
  return sum;
}

double StepCost::flops(double batch) const {
  double sum = 0;
  for (const OpCost& op : ops) {
    sum += op.flops.at(batch);
  }
  return sum;
}

double StepCost::kernels(double batch) const {
  double sum = 0;
  for (const OpCost& op : ops) {
    sum += op.kernels.at(batch);
  }
  return sum;
}

double StepCost::fixed_bytes_share(double batch) const {
  const double all = bytes(batch);
  return all > 0 ? bytes(0) / all : 0;
}

StepCost step_cost(const ledger::Table& small, i64 small_batch, const ledger::Table& large,
                   i64 large_batch) {
  check(small_batch >= 1 && large_batch > small_batch,
        "step cost: two plans at growing batches are needed, got {} and {}", small_batch,
        large_batch);
  ledger::Table keys = small;
  keys.insert(large.begin(), large.end());
  const auto row = [](const ledger::Table& table, const ledger::Key& key) {
    const auto found = table.find(key);
    return found == table.end() ? ledger::Totals{} : found->second;
  };
  StepCost cost;
  for (const auto& [key, unused] : keys) {
    const ledger::Totals a = row(small, key);
    const ledger::Totals b = row(large, key);
    const auto fit = [&](double at_small, double at_large) {
      return line(at_small, double(small_batch), at_large, double(large_batch));
    };
    OpCost op{.key = key, .flops = fit(a.flops, b.flops), .kernels = fit(a.kernels, b.kernels)};
    for (std::size_t c = 0; c < std::size_t(kMemoryClasses); ++c) {
      op.read[c] = fit(a.read[c], b.read[c]);
      op.written[c] = fit(a.written[c], b.written[c]);
    }
    cost.ops.push_back(std::move(op));
  }
  return cost;
}

double step_seconds(const StepCost& cost, double batch, const Roof& roof) {
  check(roof.bytes_per_second > 0, "roofline: an achievable bandwidth is needed, got {}",
        roof.bytes_per_second);
  double sum = 0;
  for (const OpCost& op : cost.ops) {
    sum += op_times(op, batch, roof).longest();
  }
  return sum;
}

double bound(const StepCost& cost, double batch, const Roof& roof) {
  Roof plain = roof;
  plain.kernel_seconds = 0;
  const double seconds = step_seconds(cost, batch, plain);
  return seconds > 0 ? batch / seconds : 0;
}

std::vector<i64> batch_grid(i64 largest) {
  std::vector<i64> grid;
  if (largest < 1) {
    return grid;
  }
  const i64 cap = largest >= 8 ? largest / 8 * 8 : largest;
  i64 batch = std::max<i64>(1, std::min<i64>(8, cap));
  for (; batch < cap; batch *= 2) {
    grid.push_back(batch);
  }
  grid.push_back(cap);
  return grid;
}

Prediction predict(const StepCost& cost, const Roof& roof, i64 largest) {
  check(largest >= 1, "predict: not even one sample fits");
  const auto seconds = [&](double batch) { return step_seconds(cost, batch, roof); };
  Prediction p;
  double best = 0;
  for (const i64 batch : batch_grid(largest)) {
    const double b = double(batch);
    const double t = seconds(b);
    check(t > 0, "predict: the plan of a step has no work in it");
    p.points.push_back({.batch = batch,
                        .seconds = t,
                        .samples_per_second = b / t,
                        .bytes_per_second = cost.bytes(b) * roof.bytes_scale / t,
                        .flops_per_second = cost.flops(b) / t});
    best = std::max(best, b / t);
  }
  for (PredictedPoint& point : p.points) {
    point.share_of_best = point.samples_per_second / best;
  }
  // A sum of maxima of affine functions is affine at its upper end.
  const double top = double(p.points.back().batch);
  const double slope = seconds(2 * top) - seconds(top);  // of `top` samples more
  const double fixed = std::max(0.0, seconds(top) - slope);
  p.half_batch = slope > 0 ? fixed / slope * top : 0;

  const i64 cap = p.points.back().batch;
  p.knee = *smallest(cap, [&](i64 b) { return double(b) / seconds(double(b)) >= 0.95 * best; });
  p.gain_knee =
      smallest(cap, [&](i64 b) { return 2 * seconds(double(b)) / seconds(2 * double(b)) < 1.15; });
  p.elastic_knee = smallest(cap, [&](i64 b) {
    // d ln T / d ln B = 1 - B t'(B) / t(B), with the slope taken above b.
    const double step = std::max(1.0, 0.01 * double(b));
    const double rise = (seconds(double(b) + step) - seconds(double(b))) / step;
    return 1 - double(b) * rise / seconds(double(b)) < 0.25;
  });
  return p;
}

TextTable category_table(const StepCost& cost, i64 batch) {
  struct Row {
    std::size_t memory_class;
    double read, written, fixed;
  };
  std::vector<Row> rows;
  double all = 0;
  for (std::size_t c = 0; c < std::size_t(kMemoryClasses); ++c) {
    Row row{c, 0, 0, 0};
    for (const OpCost& op : cost.ops) {
      row.read += op.read[c].at(double(batch));
      row.written += op.written[c].at(double(batch));
      row.fixed += op.read[c].fixed + op.written[c].fixed;
    }
    all += row.read + row.written;
    rows.push_back(row);
  }
  std::erase_if(rows, [](const Row& r) { return r.read + r.written <= 0; });
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.read + a.written > b.read + b.written; });
  TextTable table{.columns = {{"memory", Align::kLeft},
                              {"read"},
                              {"written"},
                              {"share"},
                              {"per sample"},
                              {"whatever the batch"}}};
  const auto add = [&](const std::string& name, double read, double written, double fixed) {
    table.rows.push_back({name, bytes_text(read), bytes_text(written),
                          percent_cell((read + written) / std::max(all, 1.0)),
                          bytes_text((read + written) / double(batch)), bytes_text(fixed)});
  };
  Row sum{0, 0, 0, 0};
  for (const Row& r : rows) {
    add(name_of(MemoryClass(r.memory_class)), r.read, r.written, r.fixed);
    sum.read += r.read;
    sum.written += r.written;
    sum.fixed += r.fixed;
  }
  add("total", sum.read, sum.written, sum.fixed);
  return table;
}

TextTable op_table(const StepCost& cost, i64 batch, const Roof& roof, std::size_t rows) {
  struct Row {
    std::string name, phase;
    double kernels = 0, bytes = 0, flops = 0;
    OpTimes times;
    double seconds = 0;
  };
  std::vector<Row> all;
  double total = 0;
  for (const OpCost& op : cost.ops) {
    const double b = double(batch);
    Row row{op.key.op,   name_of(op.key.phase), op.kernels.at(b),
            op.bytes(b), op.flops.at(b),        op_times(op, b, roof)};
    row.seconds = row.times.longest();
    total += row.seconds;
    all.push_back(std::move(row));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  TextTable table{.columns = {{"op", Align::kLeft},
                              {"phase", Align::kLeft},
                              {"kernels"},
                              {"bytes"},
                              {"FLOPs"},
                              {"FLOP/byte"},
                              {"at least"},
                              {"share"},
                              {"bound by", Align::kLeft}}};
  const auto add = [&](const Row& r, const std::string& bound_by) {
    table.rows.push_back({r.name, r.phase, format("{:.0f}", r.kernels), bytes_text(r.bytes),
                          r.flops > 0 ? count_text(r.flops) : "",
                          r.flops > 0 && r.bytes > 0 ? format("{:.3g}", r.flops / r.bytes) : "",
                          seconds_text(r.seconds), percent_cell(r.seconds / std::max(total, 1e-30)),
                          bound_by});
  };
  Row rest{.name = format("{} more", all.size() > rows ? all.size() - rows : 0)};
  Row sum{.name = "total"};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Row& r = all[i];
    for (Row* into : {&sum, i < rows ? nullptr : &rest}) {
      if (into != nullptr) {
        into->kernels += r.kernels;
        into->bytes += r.bytes;
        into->flops += r.flops;
        into->seconds += r.seconds;
      }
    }
    if (i < rows) {
      const OpTimes& t = r.times;
      add(r, t.longest() == t.memory ? "memory" : t.longest() == t.compute ? "compute" : "launch");
    }
  }
  if (all.size() > rows) {
    add(rest, "");
  }
  add(sum, "");
  return table;
}

TextTable prediction_table(const Prediction& prediction) {
  TextTable table{
      .columns = {{"batch"}, {"samples/s"}, {"step"}, {"of best"}, {"DRAM"}, {"arithmetic"}}};
  for (const PredictedPoint& p : prediction.points) {
    table.rows.push_back({format("{}", p.batch), count_text(p.samples_per_second),
                          seconds_text(p.seconds), percent_cell(p.share_of_best),
                          rate_cell(p.bytes_per_second), flops_cell(p.flops_per_second)});
  }
  return table;
}

}  // namespace penstock::measure
