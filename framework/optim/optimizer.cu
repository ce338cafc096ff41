#include "framework/optim/optimizer.h"

#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/trace.h"
#include "framework/kernels/rows.h"

namespace penstock::optim {
namespace {

using kernels::load;
using kernels::store;

constexpr i64 kChunk = 16384;  // elements per partial sum of squares

struct Begin {
  StepState* s;
  PENSTOCK_HD void operator()(i64 /*i*/) const {
    s->found_inf = 0;
    s->loss_sum = 0;
    s->correct = 0;
    s->seed = s->loss_scale * s->in.inverse_targets;
  }
};

template <class T>
struct AddLoss {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  StepState* s;
  const T* loss;
  const std::int64_t* correct;
  PENSTOCK_HD void operator()(i64 /*i*/) const {
    s->loss_sum += float(*loss);
    if (correct != nullptr) {
      s->correct += std::int32_t(*correct);
    }
  }
};

template <class T>
struct SquareSum {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const T* g;
  T* partial;
  const StepState* s;
  i64 n;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 chunk) const {
    const T* begin = g + chunk * kChunk;
    const i64 count = n - chunk * kChunk < kChunk ? n - chunk * kChunk : kChunk;
    // Unscale before squaring: a scaled fp16 gradient may have a square beyond f32.
    const T unscale = T(1) / T(s->loss_scale);
    const T sum = team.sum(count, [&](i64 i) {
      const T v = begin[i] * unscale;
      return v * v;
    });
    if (team.leader()) {
      partial[chunk] = sum;
    }
  }
};

// Everything that is one number per step.
template <class T>
struct Decide {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const T* partial;
  i64 chunks;
  StepState* s;
  OptimizerOptions o;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 /*row*/) const {
    const T squares = team.sum(chunks, [&](i64 i) { return partial[i]; });
    if (!team.leader()) {
      return;
    }
    // x - x is 0 exactly for finite x.
    const bool finite = squares - squares == T(0);
    s->grad_norm = float(math::sqrt(squares));
    if (!finite) {
      s->found_inf = 1;
    }
    if (s->found_inf != 0) {
      s->skipped += 1;
      s->grad_factor = 0;
      if (o.scale_loss) {
        const float halved = s->loss_scale * 0.5F;
        s->loss_scale = halved > o.min_scale ? halved : o.min_scale;
        s->good_steps = 0;
      }
      return;
    }
    float factor = 1 / s->loss_scale;
    if (o.clip_norm > 0 && s->grad_norm > o.clip_norm) {
      factor *= o.clip_norm / s->grad_norm;
    }
    s->grad_factor = factor;
    s->applied += 1;
    s->beta1_power *= s->in.beta1;
    s->beta2_power *= s->in.beta2;
    if (o.scale_loss && ++s->good_steps >= o.growth_interval) {
      s->good_steps = 0;
      const float doubled = s->loss_scale * 2;
      s->loss_scale = doubled < 3e38F ? doubled : s->loss_scale;
    }
  }
};

// One parameter element of any optimizer; Low is its low-precision copy's type.
template <class T, class Low, Kind K>
struct Update {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* w;
  const T* grad;
  T* m;
  T* v;
  Low* low;
  const StepState* s;
  i64 decay_end;
  OptimizerOptions o;

  PENSTOCK_HD void operator()(i64 i) const {
    if (s->found_inf != 0) {
      return;
    }
    const T decay = i < decay_end ? T(o.weight_decay) : T(0);
    const T lr = T(s->in.learning_rate);
    const T before = w[i];
    T g = grad[i] * T(s->grad_factor);
    T after;
    if constexpr (K == Kind::kSgd) {
      g += decay * before;
      const T velocity = T(s->in.momentum) * m[i] + g;
      m[i] = velocity;
      after = before - lr * (o.nesterov ? g + T(s->in.momentum) * velocity : velocity);
    } else {
      if constexpr (K == Kind::kAdam) {
        g += decay * before;
      }
      const T b1 = T(s->in.beta1);
      const T b2 = T(s->in.beta2);
      const T mean = b1 * m[i] + (T(1) - b1) * g;
      const T square = b2 * v[i] + (T(1) - b2) * g * g;
      m[i] = mean;
      v[i] = square;
      const T mean_hat = mean / (T(1) - T(s->beta1_power));
      const T square_hat = square / (T(1) - T(s->beta2_power));
      T base = before;
      if constexpr (K == Kind::kAdamW) {
        base -= lr * decay * before;
      }
      after = base - lr * mean_hat / (math::sqrt(square_hat) + T(o.epsilon));
    }
    w[i] = after;
    if (low != nullptr) {
      low[i] = store<Low>(after);
    }
  }
};

struct CommitBuffers {
  float* value;
  float* shadow;
  const StepState* s;
  PENSTOCK_HD void operator()(i64 i) const {
    if (s->found_inf != 0) {
      shadow[i] = value[i];
    } else {
      value[i] = shadow[i];
    }
  }
};

template <class T, class Low>
void update(nn::ParameterArena& arena, const OptimizerOptions& o, StepState* s) {
  const auto launch = [&]<Kind K>() {
    const auto& moments = arena.moments();
    kernels::for_each(
        arena.device(), arena.size(),
        Update<T, Low, K>{
            .w = arena.masters().data<T>(),
            .grad = arena.gradients().data<T>(),
            .m = moments[0].data<T>(),
            .v = moments.size() > 1 ? moments[1].data<T>() : nullptr,
            .low = arena.low_precision().defined() ? arena.low_precision().data<Low>() : nullptr,
            .s = s,
            .decay_end = arena.decay_end(),
            .o = o});
  };
  switch (o.kind) {
    case Kind::kSgd: launch.template operator()<Kind::kSgd>(); return;
    case Kind::kAdam: launch.template operator()<Kind::kAdam>(); return;
    case Kind::kAdamW: launch.template operator()<Kind::kAdamW>(); return;
  }
}

}  // namespace

int moments_of(Kind kind) { return kind == Kind::kSgd ? 1 : 2; }

void add_loss(const Tensor& state, const Tensor& loss, const Tensor& correct) {
  const trace::Op op("add_loss", trace::Phase::kOther);
  ledger::kernel({&loss, &correct, &state}, {&state});
  const std::int64_t* hits = correct.defined() ? correct.data<std::int64_t>() : nullptr;
  if (loss.dtype() == DType::f64) {
    kernels::for_each(state.device(), 1,
                      AddLoss<double>{step_state_pointer(state), loss.data<double>(), hits});
  } else {
    kernels::for_each(state.device(), 1,
                      AddLoss<float>{step_state_pointer(state), loss.data<float>(), hits});
  }
}

Optimizer::Optimizer(nn::ParameterArena& arena, const OptimizerOptions& options)
    : arena_(arena), options_(options) {
  const PersistentScope persistent;
  check(int(arena.moments().size()) == moments_of(options.kind),
        "optimizer: the arena holds {} moments, {} are needed", arena.moments().size(),
        moments_of(options.kind));
  const i64 chunks = (arena.size() + kChunk - 1) / kChunk;
  partial_ = Tensor::empty({chunks}, arena.masters().dtype(), arena.device(),
                           MemoryClass::kOptimizer);
}

void Optimizer::begin_step(const Tensor& state) const {
  const trace::Op op("begin_step", trace::Phase::kOther);
  ledger::kernel({&state}, {&state});
  kernels::for_each(state.device(), 1, Begin{step_state_pointer(state)});
}

void Optimizer::step(const Tensor& state) {
  const trace::Op op("optimizer", trace::Phase::kOptimizer);
  const Tensor& g = arena_.gradients();
  const Tensor& w = arena_.masters();
  StepState* s = step_state_pointer(state);
  ledger::kernel({&g}, {&partial_}, 2.0 * double(arena_.size()));
  ledger::kernel({&partial_, &state}, {&state});
  const auto norm = [&]<class T>() {
    kernels::for_each_row(arena_.device(), partial_.numel(), kChunk,
                          SquareSum<T>{g.data<T>(), partial_.data<T>(), s, arena_.size()});
    kernels::for_each_row(arena_.device(), 1, partial_.numel(),
                          Decide<T>{partial_.data<T>(), partial_.numel(), s, options_});
  };
  const auto& moments = arena_.moments();
  const Tensor second = moments.size() > 1 ? moments[1] : Tensor();
  ledger::kernel({&g, &w, &moments[0], &second}, {&w, &moments[0], &second, &arena_.low_precision()},
                 (options_.kind == Kind::kSgd ? 6.0 : 15.0) * double(arena_.size()));
  if (w.dtype() == DType::f64) {
    norm.operator()<double>();
    update<double, float>(arena_, options_, s);
  } else {
    norm.operator()<float>();
    if (arena_.low_precision().defined() && arena_.low_precision().dtype() == DType::bf16) {
      update<float, bf16>(arena_, options_, s);
    } else {
      update<float, f16>(arena_, options_, s);
    }
  }
  if (arena_.buffers().defined()) {
    const Tensor& values = arena_.buffers();
    const Tensor& shadows = arena_.buffer_shadows();
    ledger::kernel({&shadows}, {&values});
    kernels::for_each(arena_.device(), values.numel(),
                      CommitBuffers{values.data<float>(), shadows.data<float>(), s});
  }
  arena_.bump_versions();
}

}  // namespace penstock::optim
