#include "framework/core/trace.h"

#include <exception>

#include "framework/core/cuda.h"

namespace penstock::trace {
namespace {

thread_local const char* t_name = "";
thread_local Phase t_phase = Phase::kOther;
thread_local Listener* t_listener = nullptr;
bool g_sync_each_op = false;

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kOptimizer: return "optimizer";
    case Phase::kInput: return "input";
    case Phase::kOther: return "other";
  }
  return "?";
}

void set_listener(Listener* listener) {
  t_listener = listener;
}
Listener* listener() {
  return t_listener;
}

Op::Op(const char* name) : Op(name, Phase::kForward) {}

Op::Op(const char* name, Phase phase)
    : outer_name_(t_name), outer_phase_(t_phase), outermost_(*t_name == '\0') {
  if (outermost_) {
    t_name = name;
    t_phase = phase;
    if (t_listener != nullptr) {
      t_listener->begin(name, phase);
    }
  }
}

Op::~Op() {
  if (!outermost_) {
    return;
  }
  if (t_listener != nullptr) {
    t_listener->end(t_name, t_phase);
  }
  if (g_sync_each_op) {
    cuda::report_pending_error(t_name, name_of(t_phase));
  }
  t_name = outer_name_;
  t_phase = outer_phase_;
}

const char* current_op() {
  return t_name;
}
Phase current_phase() {
  return t_phase;
}

void set_sync_each_op(bool on) {
  g_sync_each_op = on;
}
bool sync_each_op() {
  return g_sync_each_op;
}

}  // namespace penstock::trace
