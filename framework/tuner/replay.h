// Reproduces the decisions of a run from its log.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "framework/core/check.h"
#include "framework/tuner/decisions.h"

namespace penstock::tuner {

struct ReplayResult {
  bool same = true;
  i64 decisions = 0;  // compared and equal: proposals, verdicts, requests, answers
  i64 machines = 0;   // probes, tuners and policies that were started
  i64 skipped = 0;    // records of other writers
  // The first difference, empty when there is none: where, what the log says, what came out.
  std::string origin;  // "decisions.jsonl:12"
  std::string expected;
  std::string actual;
};

// Feeds the inputs in `log` to fresh machines and compares what they write with what the log
// holds. Throws DataError for a record that lacks what a machine needs.
ReplayResult replay(const std::vector<Record>& log);
// One or two lines for the terminal.
std::string to_string(const ReplayResult& result);

}  // namespace penstock::tuner
