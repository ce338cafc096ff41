// Loader machines: the named panel and random ones.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/tuner_sim/loader.h"

namespace penstock::tuner_sim {

// A machine, and what happens to it in the middle of the run.
struct LoaderCell {
  std::string name;
  LoaderMachine machine;
  std::int64_t batch = 32;
  int change_at = -1;  // interval before which `change` happens
  std::function<void(LoaderMachine&)> change = nullptr;
  bool held_out = false;  // not looked at while the rules were shaped
  bool shared_cores = false;
};

std::vector<LoaderCell> loader_panel();

// How unpleasant random machines are.
enum class Weather {
  kStill,   // constant work, constant step: the same interval again and again
  kLight,   // lognormal work and steps, a few per cent between intervals
  kStormy,  // heavy tails, two kinds of samples, bursts
};
// A machine drawn from `seed`: cores, work, step, storage, contention, ring.
LoaderCell random_loader_cell(std::uint64_t seed, Weather weather);

}  // namespace penstock::tuner_sim
