#include "framework/core/step_state.h"

#include <utility>

namespace penstock {
namespace {

thread_local Tensor t_current;

}  // namespace

Tensor make_step_state(Device device) {
  const PersistentScope persistent;
  const StepState initial;
  const Tensor state =
      Tensor::empty({i64(sizeof(StepState))}, DType::u8, device, MemoryClass::kBuffers);
  state.load_host(&initial);
  return state;
}

Tensor current_step_state(Device device) {
  if (t_current.defined() && t_current.device() == device) {
    return t_current;
  }
  // Leaked with the process: regions may outlive every static destructor.
  static auto* cpu = new Tensor;
  static auto* gpu = new Tensor;
  static auto* meta = new Tensor;
  Tensor& state = device.is_cpu() ? *cpu : device.is_cuda() ? *gpu : *meta;
  if (!state.defined() || state.device() != device) {
    state = make_step_state(device);
  }
  return state;
}

Tensor step_state_field(const Tensor& state, float StepState::* field) {
  const StepState probe;
  const auto offset = reinterpret_cast<const char*>(&(probe.*field)) -
                      reinterpret_cast<const char*>(&probe);
  return state.part(offset, {4}).viewed_as(DType::f32, {});
}

StepStateScope::StepStateScope(const Tensor& state) : before_(std::exchange(t_current, state)) {}
StepStateScope::~StepStateScope() { t_current = before_; }

}  // namespace penstock
