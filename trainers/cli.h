// The command line: which command, and what it was given.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace penstock::trainers {

struct Arguments {
  std::string command;  // "train", "sweep", ...
  std::string config;   // CONFIG.yaml, where the command takes one
  std::vector<std::string> runs;
  std::vector<std::string> set;        // --set key.path=value, in order
  std::optional<std::string> out;      // --out DIR
  std::optional<std::string> resume;   // --resume[=auto|PATH]; "" for the plain flag
  std::optional<std::string> auto_batch;  // --auto-batch[=throughput|hold]
  std::string device;                  // plan --device NAME
  std::string sort = "time";           // profile --sort
  std::string bench;                   // bench loader
  std::string checkpoint;              // eval, export
  std::string to;                      // export --to FILE
  int ranks = 1;                       // plan --ranks N
  bool smoke = false;                  // check --smoke
  bool measure = false;                // info --measure
  bool json = false;
  bool quiet = false;
  bool verbose = false;
};

// Parses the command line. Prints help or the version and returns none when that is all that was
// asked for. Throws ConfigError (exit code 2) for words that it does not know, with the nearest one.
std::optional<Arguments> parse_arguments(int argc, const char* const* argv);

}  // namespace penstock::trainers
