#include <utility>
#include <vector>

#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/math.h"
#include "framework/core/step_state.h"
#include "framework/core/trace.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/rows.h"
#include "framework/ops/loss.h"

namespace penstock::ops {
namespace {

using kernels::load;
using kernels::store;

// Sum of the weights of rows that count, so that a mean has its denominator on the device.
template <class Index, class S>
struct Denominator {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  const Index* target;
  const float* class_weights;
  i64 rows, classes, ignore;
  S* inverse;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 /*row*/) const {
    const S sum = team.sum(rows, [&](i64 i) {
      const i64 t = i64(target[i]);
      if (t == ignore || t < 0 || t >= classes) {
        return S(0);
      }
      return class_weights != nullptr ? S(class_weights[t]) : S(1);
    });
    if (team.leader()) {
      *inverse = sum > S(0) ? S(1) / sum : S(0);
    }
  }
};

template <class T, class Index>
struct Row {
  using S = compute_t<T>;
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  const T* x;
  T* dx;                  // null without gradient; may be x
  S* loss;                // [N]
  std::int32_t* correct;  // [N]
  const Index* target;
  const Index* second;
  const float* row_weight;
  const float* class_weights;
  const S* factor;  // multiplies the gradient; null: 1
  i64 classes, ignore;
  float smoothing;

  PENSTOCK_HD S weight_of(i64 c) const {
    return class_weights != nullptr ? S(class_weights[c]) : S(1);
  }

  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const T* in = x + row * classes;
    const i64 t1 = i64(target[row]);
    const i64 t2 = second != nullptr ? i64(second[row]) : t1;
    const S w1 = row_weight != nullptr ? S(row_weight[row]) : S(1);
    const bool ignored = t1 == ignore;
    const bool bad = !ignored && (t1 < 0 || t1 >= classes || t2 < 0 || t2 >= classes);
    if (ignored || bad) {
      if (dx != nullptr) {
        team.each(classes, [&](i64 j) { dx[row * classes + j] = store<T>(S(0)); });
      }
      if (team.leader()) {
        loss[row] = bad ? S(0) / (S(smoothing) * S(0)) : S(0);
        correct[row] = 0;
      }
      return;
    }
    const S top = team.max_of(classes, -math::infinity<S>(), in);
    const S sum = team.sum_of(
        classes, [&](i64 /*j*/, S v) { return math::exp(v - top); }, in);
    const S log_sum = math::log(sum) + top;
    // Rows whose largest logit stands earlier than the target are wrong.
    // Only looked for where the target's logit is the largest: then it must be the first of them.
    const bool hit = S(load(in[t1])) >= top;
    const S earlier = hit ? team.sum_of(
                                t1, [&](i64 /*j*/, S v) { return v >= top ? S(1) : S(0); }, in)
                          : S(0);
    const S e = S(smoothing);
    const S each = e / S(classes);
    S l = (S(1) - e) * (w1 * weight_of(t1) * (log_sum - S(load(in[t1]))) +
                        (S(1) - w1) * weight_of(t2) * (log_sum - S(load(in[t2]))));
    S total = (S(1) - e) * (w1 * weight_of(t1) + (S(1) - w1) * weight_of(t2));
    if (smoothing > 0) {
      l += each *
           team.sum(classes, [&](i64 j) { return weight_of(j) * (log_sum - S(load(in[j]))); });
      total += each * team.sum(classes, [&](i64 j) { return weight_of(j); });
    }
    if (team.leader()) {
      loss[row] = l;
      correct[row] = hit && earlier == S(0) ? 1 : 0;
    }
    if (dx != nullptr) {
      const S scale = factor != nullptr ? *factor : S(1);
      const S inverse = S(1) / sum;
      const S first = (S(1) - e) * w1 * weight_of(t1);
      const S other = (S(1) - e) * (S(1) - w1) * weight_of(t2);
      team.sync();  // dx may be x: the leader above has read it
      team.write(
          classes, dx + row * classes,
          [&](i64 j, S v) {
            S g = total * math::exp(v - top) * inverse;
            g -= each * (smoothing > 0 ? weight_of(j) : S(0));
            g -= j == t1 ? first : S(0);
            g -= j == t2 ? other : S(0);
            return scale * g;
          },
          in);
    }
  }
};

template <class S>
struct Finish {
  static constexpr bool kCpuOnly = std::is_same_v<S, double>;
  const S* loss;
  const std::int32_t* correct;
  i64 rows;
  const S* factor;  // of the mean; null: 1
  S* out;
  std::int64_t* right;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 /*row*/) const {
    const S sum = team.sum(rows, [&](i64 i) { return loss[i]; });
    const std::int64_t hits = team.sum(rows, [&](i64 i) { return std::int64_t(correct[i]); });
    if (team.leader()) {
      *out = factor != nullptr ? sum * *factor : sum;
      *right = hits;
    }
  }
};

template <class Index>
void check_targets(const Tensor& target, i64 classes, i64 ignore) {
  const Index* t = target.data<Index>();
  for (i64 i = 0; i < target.numel(); ++i) {
    const i64 v = i64(t[i]);
    check((v >= 0 && v < classes) || v == ignore,
          "cross_entropy: target {} of row {} is outside [0, {}) and is not ignore_index {}", v, i,
          classes, ignore);
  }
}

template <class T, class Index>
void launch(const Tensor& logits, const Tensor& dx, const Tensor& loss_rows, const Tensor& correct,
            const Tensor& target, const CrossEntropy& o, const Tensor& factor) {
  using S = compute_t<T>;
  const Row<T, Index> row{
      .x = logits.data<T>(),
      .dx = dx.defined() ? dx.data<T>() : nullptr,
      .loss = loss_rows.data<S>(),
      .correct = correct.data<std::int32_t>(),
      .target = target.data<Index>(),
      .second = o.second_target.defined() ? o.second_target.data<Index>() : nullptr,
      .row_weight = o.row_weight.defined() ? o.row_weight.data<float>() : nullptr,
      .class_weights = o.class_weights.defined() ? o.class_weights.data<float>() : nullptr,
      .factor = factor.defined() ? factor.data<S>() : nullptr,
      .classes = logits.dim(1),
      .ignore = o.ignore_index,
      .smoothing = o.label_smoothing,
  };
  kernels::for_each_row(logits.device(), logits.dim(0), logits.dim(1) * 4, row);
}

template <class T, class S>
struct ScaleRow {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  T* y;
  const T* x;
  const S* scale;
  i64 cols, step;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const S s = scale[row * step];
    team.each(cols, [&](i64 j) { y[row * cols + j] = store<T>(S(load(x[row * cols + j])) * s); });
  }
};

// x [N, C] times dy: one value, or one per row.
Tensor scale_rows(const Tensor& x, const Tensor& dy, bool per_row) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  ledger::kernel({&x, &dy}, {&y}, double(x.numel()));
  visit_float(x.dtype(), "cross_entropy", [&]<class T>() {
    using S = compute_t<T>;
    kernels::for_each_row(
        x.device(), x.dim(0), x.dim(1),
        ScaleRow<T, S>{y.data<T>(), x.data<T>(), dy.data<S>(), x.dim(1), per_row ? 1 : 0});
  });
  return y;
}

void check_arguments(const Tensor& logits, const Tensor& target, const CrossEntropy& o) {
  check(logits.rank() == 2 && is_float(logits.dtype()),
        "cross_entropy: logits {}; expected floats of shape [N, C]", logits);
  check(target.rank() == 1 && target.dim(0) == logits.dim(0),
        "cross_entropy: target {} for logits {}; expected [N]", target, logits);
  check(logits.dim(1) > 0 || logits.dim(0) == 0, "cross_entropy: no classes in {}", logits);
  check(o.label_smoothing >= 0 && o.label_smoothing <= 1,
        "cross_entropy: label smoothing {} is outside [0, 1]", o.label_smoothing);
  check(!o.class_weights.defined() ||
            (o.class_weights.dtype() == DType::f32 && o.class_weights.numel() == logits.dim(1)),
        "cross_entropy: class weights {} for {} classes; expected f32", o.class_weights,
        logits.dim(1));
  check(o.second_target.defined() == o.row_weight.defined(),
        "cross_entropy: a second target and row weights come together");
  check(!o.second_target.defined() || (o.second_target.dtype() == target.dtype() &&
                                       o.second_target.shape() == target.shape()),
        "cross_entropy: second target {} beside {}", o.second_target, target);
  check(!o.row_weight.defined() ||
            (o.row_weight.dtype() == DType::f32 && o.row_weight.numel() == logits.dim(0)),
        "cross_entropy: row weights {} for {} rows; expected f32", o.row_weight, logits.dim(0));
}

}  // namespace

LossResult cross_entropy(Tensor logits_, const Tensor& target, const CrossEntropy& o) {
  const trace::Op op("cross_entropy");
  const Tensor edge = logits_;  // keeps the graph edge
  check_arguments(logits_, target, o);
  const bool differentiate = needs_grad({logits_});
  const Device device = logits_.device();
  const i64 rows = logits_.dim(0);
  const i64 classes = logits_.dim(1);
  const DType sum_dtype = logits_.dtype() == DType::f64 ? DType::f64 : DType::f32;
  if (device.is_cpu()) {
    visit_index(target.dtype(), "cross_entropy",
                [&]<class Index>() { check_targets<Index>(target, classes, o.ignore_index); });
  }

  // The caller's handle and `edge` own the memory alone: write the gradient over the logits.
  const bool consume = logits_.storage().use_count() == 2;
  const Tensor dx = !differentiate ? Tensor()
                    : consume      ? logits_.detached()
                                   : Tensor::empty(logits_.shape(), logits_.dtype(), device);
  const Tensor loss_rows = Tensor::empty({rows}, sum_dtype, device);
  const Tensor correct_rows = Tensor::empty({rows}, DType::i32, device);
  Tensor mean;    // 1 / sum of weights
  Tensor factor;  // what the gradient is multiplied with already
  if (o.reduction == Reduction::kMean) {
    mean = Tensor::empty({}, sum_dtype, device);
    ledger::kernel({&target}, {&mean});
    visit_index(target.dtype(), "cross_entropy", [&]<class Index>() {
      visit_float(sum_dtype, "cross_entropy", [&]<class S>() {
        if constexpr (std::is_same_v<S, compute_t<S>>) {
          kernels::for_each_row(
              device, 1, rows,
              Denominator<Index, S>{
                  target.data<Index>(),
                  o.class_weights.defined() ? o.class_weights.data<float>() : nullptr, rows,
                  classes, o.ignore_index, mean.data<S>()});
        }
      });
    });
    factor = mean;
  } else if (o.reduction == Reduction::kStep) {
    check(sum_dtype == DType::f32, "cross_entropy: training steps have no f64 loss");
    factor = step_state_field(current_step_state(device), &StepState::seed);
  }
  ledger::kernel({&logits_, &target, &o.second_target, &o.row_weight},
                 {&dx, &loss_rows, &correct_rows}, 10.0 * double(logits_.numel()));
  visit_float(logits_.dtype(), "cross_entropy", [&]<class T>() {
    visit_index(target.dtype(), "cross_entropy", [&]<class Index>() {
      launch<T, Index>(logits_, dx, loss_rows, correct_rows, target, o, factor);
    });
  });

  LossResult result;
  result.correct = Tensor::empty({}, DType::i64, device);
  const Tensor total = Tensor::empty({}, sum_dtype, device);
  ledger::kernel({&loss_rows, &correct_rows}, {&total, &result.correct});
  visit_float(sum_dtype, "cross_entropy", [&]<class S>() {
    if constexpr (std::is_same_v<S, compute_t<S>>) {
      kernels::for_each_row(device, 1, rows,
                            Finish<S>{loss_rows.data<S>(), correct_rows.data<std::int32_t>(), rows,
                                      mean.defined() ? mean.data<S>() : nullptr, total.data<S>(),
                                      result.correct.data<std::int64_t>()});
    }
  });
  const Tensor y = o.reduction == Reduction::kNone ? loss_rows : total;
  const bool per_row = o.reduction == Reduction::kNone;
  result.loss = record("cross_entropy", y, {edge}, [dx, per_row](Backward& b) {
    // dx already is the gradient for an upstream 1.
    b.set(0, b.dy_is_seed() ? dx : scale_rows(dx, b.dy(), per_row));
  });
  return result;
}

}  // namespace penstock::ops
