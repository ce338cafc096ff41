#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/random.h"
#include "framework/core/step_state.h"
#include "framework/core/trace.h"
#include "framework/kernels/launch.h"
#include "framework/ops/pointwise.h"

namespace penstock::ops {
namespace {

// Four elements of one sample: they share one draw.
template <class T>
struct Mask {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* y;
  const T* x;
  const StepState* state;
  i64 per_sample;
  i64 groups;  // of four, per sample
  std::uint32_t layer;
  float p;
  float keep_scale;
  PENSTOCK_HD void operator()(i64 group) const {
    const i64 sample = group / groups;
    const i64 block = group % groups;
    const std::uint64_t position =
        std::uint64_t(state->in.position) + std::uint64_t(sample) * state->in.stride;
    const random::Four f = random::draw(state->in.seed, random::Stream::kDropout, layer, position,
                                        std::uint64_t(block));
    const std::uint32_t words[4] = {f.x, f.y, f.z, f.w};
    const i64 begin = block * 4;
    const i64 n = per_sample - begin < 4 ? per_sample - begin : 4;
    for (i64 k = 0; k < n; ++k) {
      const i64 i = sample * per_sample + begin + k;
      const bool keep = random::uniform(words[k]) >= p;
      y[i] = keep ? kernels::store<T>(S(kernels::load(x[i])) * S(keep_scale))
                  : kernels::store<T>(S(0));
    }
  }
};

Tensor masked(const Tensor& x, const Dropout& o) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const i64 samples = x.rank() > 0 ? x.dim(0) : 1;
  const i64 per_sample = samples > 0 ? x.numel() / samples : 0;
  const i64 groups = (per_sample + 3) / 4;
  ledger::kernel({&x}, {&y}, double(x.numel()));
  const Tensor state = current_step_state(x.device());
  visit_float(x.dtype(), "dropout", [&]<class T>() {
    kernels::for_each(
        x.device(), samples * groups,
        Mask<T>{.y = y.data<T>(),
                .x = x.data<T>(),
                .state = step_state_pointer(state),
                .per_sample = per_sample,
                .groups = groups,
                .layer = o.layer,
                .p = float(o.p),
                .keep_scale = o.p < 1 ? float(1 / (1 - o.p)) : 0.0F},
        kernels::kGrain / 16);
  });
  return y;
}

}  // namespace

Tensor dropout(const Tensor& x, const Dropout& o) {
  const trace::Op op("dropout");
  check(o.p >= 0 && o.p <= 1, "dropout: p = {} is outside [0, 1]", o.p);
  if (o.p == 0) {
    return x;
  }
  return record("dropout", masked(x, o), {x},
                [o](Backward& b) { b.set(0, masked(b.dy(), o)); });
}

}  // namespace penstock::ops
