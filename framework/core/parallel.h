// Splitting CPU work over the compute threads.
#pragma once

#include "framework/core/function_ref.h"
#include "framework/core/target.h"

namespace penstock::parallel {

// Compute threads used by run(); machine::cores() at start. Loader workers are counted apart.
int threads();
void set_threads(int count);

// Calls body(begin, end) over disjoint ranges that cover [0, n), on up to threads() threads; ranges
// hold at least `grain` items (the last may hold fewer) and begin at multiples of 64. An exception
// in a body is rethrown here, after all bodies ended. Nested calls, and calls from a thread that
// declared itself serial, run inline.
void run(i64 n, i64 grain, FunctionRef<void(i64, i64)> body);

// The same without rounding ranges to 64: for items that are rows of work.
void rows(i64 n, i64 grain, FunctionRef<void(i64, i64)> body);

// Calls body(i) for i in [0, count), one task each, on up to threads() threads.
void tasks(int count, FunctionRef<void(int)> body);

// While one lives, this thread's run() and tasks() work inline: loader workers hold one.
class SerialScope {
 public:
  SerialScope();
  ~SerialScope();
  SerialScope(const SerialScope&) = delete;
  SerialScope& operator=(const SerialScope&) = delete;

 private:
  bool before_;
};

// Runs `body(context, i)` for i in [0, count) on `count` threads of one team.
using Team = void (*)(int count, void (*body)(void* context, int index), void* context);
// Replaces oneTBB as the provider of threads. A library that keeps a team of its own (OpenMP in
// oneDNN) installs it here, so that its kernels and ours share one set of threads.
void set_team(Team team);

}  // namespace penstock::parallel
