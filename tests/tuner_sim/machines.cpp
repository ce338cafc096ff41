#include "tests/tuner_sim/machines.h"

#include <array>
#include <string>

namespace penstock::tuner_sim {
namespace {

// Batch 32 and a step of 32 ms: a sample that takes n milliseconds needs n workers.
LoaderMachine base(double workers_needed) {
  LoaderMachine machine;
  machine.step_fixed = 0.016;
  machine.step_per_sample = 0.0005;
  machine.step_cv = 0.02;
  machine.work = Work::kLognormal;
  machine.work_cv = 0.3;
  machine.work_seconds = 0.001 * workers_needed;
  return machine;
}

LoaderMachine with_work(double workers_needed, Work work, double cv) {
  LoaderMachine machine = base(workers_needed);
  machine.work = work;
  machine.work_cv = cv;
  return machine;
}

LoaderMachine with_disk(double workers_needed, double reads_needed, int parallel) {
  LoaderMachine machine = base(workers_needed);
  machine.fetch_seconds = 0.001 * reads_needed;
  machine.fetch_cv = 0.5;
  machine.fetch_parallel = parallel;
  return machine;
}

LoaderMachine with_shared_cores(double workers_needed, int compute_threads) {
  LoaderMachine machine = base(workers_needed);
  machine.compute_threads = compute_threads;
  machine.lockstep = 4;
  return machine;
}

}  // namespace

std::vector<LoaderCell> loader_panel() {
  std::vector<LoaderCell> panel;
  const auto add = [&panel](LoaderCell cell) { panel.push_back(std::move(cell)); };
  // Development cells: the rules were shaped on them.
  add({.name = "even samples", .machine = base(6)});
  add({.name = "long step", .machine = base(0.6)});
  add({.name = "more than all cores", .machine = base(24)});
  add({.name = "heavy tail, CV 3", .machine = with_work(5, Work::kLognormal, 3)});
  add({.name = "1 in 100 takes 50 x", .machine = with_work(6, Work::kRareSlow, 50)});
  add({.name = "two kinds, 10 to 1", .machine = with_work(8, Work::kBimodal, 10)});
  add({.name = "slow disk", .machine = with_disk(3, 12, 24)});
  add({.name = "saturated disk", .machine = with_disk(3, 24, 12)});
  add({.name = "shared cores, 8 of 16", .machine = with_shared_cores(6, 8), .shared_cores = true});
  {
    LoaderMachine machine = base(10);
    machine.coherence = 0.012;
    add({.name = "bandwidth knee", .machine = machine});
  }
  add({.name = "decode twice as dear",
       .machine = base(4),
       .change_at = 40,
       .change = [](LoaderMachine& machine) { machine.work_seconds *= 2; }});
  add({.name = "step twice as fast",
       .machine = base(4),
       .change_at = 40,
       .change = [](LoaderMachine& machine) {
         machine.step_fixed /= 2;
         machine.step_per_sample /= 2;
       }});
  {
    LoaderMachine machine = base(5);
    machine.step_fixed = 0.001;
    machine.step_per_sample = 0.00005;
    machine.work_seconds = 0.0004;
    add({.name = "tiny model", .machine = machine});
  }
  // Held out.
  {
    LoaderMachine machine = base(5);
    machine.burst_period = 9;
    machine.burst_factor = 6;
    add({.name = "8 fast steps, 1 long", .machine = machine, .held_out = true});
  }
  {
    LoaderMachine machine = base(6);
    machine.pause_period = 50;
    machine.pause_seconds = 1;
    add({.name = "evaluation every 50 steps", .machine = machine, .held_out = true});
  }
  add({.name = "heavy tail, CV 6", .machine = with_work(5, Work::kLognormal, 6), .held_out = true});
  add({.name = "shared cores, 12 of 16",
       .machine = with_shared_cores(6, 12),
       .held_out = true,
       .shared_cores = true});
  add({.name = "a neighbour takes 8 cores",
       .machine = base(10),
       .change_at = 40,
       .change = [](LoaderMachine& machine) { machine.cores = 8; },
       .held_out = true});
  {
    LoaderMachine machine = with_work(6, Work::kLognormal, 1);
    machine.ring_slots = 96;
    add({.name = "ring of 3 batches", .machine = machine, .held_out = true});
  }
  add({.name = "disk 3 x slower",
       .machine = with_disk(3, 6, 40),
       .change_at = 40,
       .change = [](LoaderMachine& machine) { machine.fetch_seconds *= 3; },
       .held_out = true});
  {
    LoaderMachine machine = with_shared_cores(2, 15);
    machine.bandwidth_drag = 0.01;
    add({.name = "CPU training, 15 of 16",
         .machine = machine,
         .held_out = true,
         .shared_cores = true});
  }
  add({.name = "decoded in memory", .machine = base(0.02), .held_out = true});
  {
    LoaderMachine machine = with_disk(6, 8, 32);
    machine.work = Work::kBimodal;
    machine.work_cv = 10;
    machine.step_cv = 0.3;
    add({.name = "two kinds from disk", .machine = machine, .held_out = true});
  }
  return panel;
}

LoaderCell random_loader_cell(std::uint64_t seed, Weather weather) {
  Random draw(seed);
  LoaderCell cell;
  cell.name = "random " + std::to_string(seed);
  LoaderMachine& machine = cell.machine;
  constexpr std::array<int, 6> kCores = {2, 4, 8, 16, 32, 64};
  machine.cores = kCores[std::size_t(draw.integer(0, 5))];
  cell.batch = std::int64_t(8) << draw.integer(0, 2);
  const double step = draw.log_uniform(0.005, 0.4);
  const double fixed = draw.uniform(0.1, 0.9);
  machine.step_fixed = step * fixed;
  machine.step_per_sample = step * (1 - fixed) / double(cell.batch);
  const double needed = draw.log_uniform(0.02, 1.6 * machine.cores);
  machine.work_seconds = needed * step / double(cell.batch);
  if (draw.chance(0.25)) {
    machine.compute_threads = draw.integer(1, machine.cores);
    machine.lockstep = draw.uniform(0.5, 4);
    cell.shared_cores = true;
  }
  if (draw.chance(0.25)) {
    machine.coherence = draw.log_uniform(0.0005, 0.02);
    machine.contention = draw.uniform(0, 0.05);
  }
  if (draw.chance(0.25)) {
    machine.fetch_seconds = draw.log_uniform(0.1, 32) * step / double(cell.batch);
    machine.fetch_parallel = draw.integer(2, 48);
  }
  if (draw.chance(0.2)) {
    machine.ring_slots = cell.batch * draw.integer(2, 8);
  }
  if (weather == Weather::kStill) {
    return cell;
  }
  machine.step_cv = draw.uniform(0, 0.05);
  machine.fetch_cv = draw.uniform(0, 1);
  machine.work = Work::kLognormal;
  machine.work_cv = draw.uniform(0.1, 1);
  if (weather == Weather::kStormy) {
    const int kind = draw.integer(0, 3);
    if (kind == 0) {
      machine.work_cv = draw.uniform(1, 6);
    } else if (kind == 1) {
      machine.work = Work::kRareSlow;
      machine.work_cv = draw.uniform(10, 60);
    } else if (kind == 2) {
      machine.work = Work::kBimodal;
      machine.work_cv = draw.uniform(2, 12);
    } else {
      machine.burst_period = draw.integer(3, 12);
      machine.burst_factor = draw.uniform(2, 8);
    }
  }
  return cell;
}

}  // namespace penstock::tuner_sim
