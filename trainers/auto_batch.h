// --auto-batch: plan, probe, decide. Runs real steps on a runner of its own, which is gone before
// training begins: the run that follows is the one that train.batch would have given.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/measure/report.h"
#include "framework/tuner/policy.h"
#include "framework/tuner/probe.h"
#include "trainers/device.h"
#include "trainers/plan.h"

namespace penstock::trainers {

struct AutoBatchOptions {
  bool all = false;          // sweep: every candidate, no early end
  double budget_seconds = 0;  // 0: the configuration's
  std::function<bool()> stop;  // a signal: ends with StepStopped
  std::function<void(const std::string&)> activity;  // "probing batch 128"
};

struct AutoBatch {
  tuner::ProbeResult probe;
  measure::StepCost cost;
  measure::Ceilings ceilings;
  i64 capacity = 0;            // bytes
  i64 largest_fitting = 0;     // by memory alone
  double supply = 0;           // samples per second that the loader gives alone; 0: not measured
  int supply_workers = 0;
  i64 end_to_end_knee = 0;     // smallest batch at which the loader, not the device, limits
  double plan_seconds = 0;     // choosing algorithms and building plans
  double seconds = 0;          // all of it
  i64 failed_allocations = 0;
  std::vector<tuner::Record> records;
  measure::Curve curve;
};

// Throws OutOfMemory when not even one sample fits.
AutoBatch find_batch(const Setup& setup, const AutoBatchOptions& options);

// Stops the probe between two steps.
class StepStopped : public std::exception {};

// What the policy makes of it; added to the records.
tuner::PolicyDecision policy_for(const Setup& setup, AutoBatch& found, const std::string& policy);

}  // namespace penstock::trainers
