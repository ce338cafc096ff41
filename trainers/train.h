// The training run.
#pragma once

#include <optional>
#include <string>

#include "framework/core/check.h"
#include "framework/io/config.h"

namespace penstock::trainers {

struct TrainOptions {
  std::string out;                    // folder of the run; empty: runs/NAME-N
  std::optional<std::string> resume;  // "": from the newest checkpoint, which must exist; "auto": from it
                                      // when there is one
  bool json = false;
  bool quiet = false;
};

// Trains to the end, the target, the time limit or a signal. Returns what the process exits with.
ExitCode train(const io::Config& config, const TrainOptions& options);

}  // namespace penstock::trainers
