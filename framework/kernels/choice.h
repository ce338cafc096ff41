// Which algorithm a library call uses: chosen once per problem, kept in memory and on disk, keyed by
// device model, library version and problem. Captured steps and plans only read it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/core/check.h"

namespace penstock::kernels {

struct Choice {
  std::string algorithm;  // bytes or text that the library understands
  i64 workspace = 0;      // bytes it needs
  double milliseconds = 0;  // when it was timed; 0: taken untimed
};

// The largest workspace a candidate may ask for (config key memory.workspace_limit).
i64 workspace_limit();
void set_workspace_limit(i64 bytes);
// Take the first deterministic candidate, untimed (config key train.deterministic).
bool deterministic();
void set_deterministic(bool on);
// While one lives on this thread, nothing is timed: the first candidate is taken and not kept, as
// for the short batch at the end of an epoch.
class UntimedScope {
 public:
  UntimedScope();
  ~UntimedScope();
  UntimedScope(const UntimedScope&) = delete;
  UntimedScope& operator=(const UntimedScope&) = delete;

 private:
  bool before_;
};
bool untimed();

// The choice for `key`, if one was made.
std::optional<Choice> find_choice(const std::string& key);
void keep_choice(const std::string& key, const Choice& choice);
// Reads the choices of earlier processes from `file` and appends new ones to it, a line each with a
// checksum; the caller names the file by device and library versions. What cannot be read or written
// is chosen again: a cache never ends a run. Empty: no file.
void use_choice_file(const std::string& file);
// How many choices were made (not read) so far: a steady state makes none.
i64 choices_made();
// Forgets everything in memory: tests.
void forget_choices();

}  // namespace penstock::kernels
