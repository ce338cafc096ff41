#include "framework/ops/image_input.h"

#include "framework/core/ledger.h"
#include "framework/core/trace.h"
#include "framework/kernels/launch.h"

namespace penstock::ops {
namespace {

template <class In, class Out>
struct Normalise {
  using Real = compute_t<Out>;
  static constexpr bool kCpuOnly = std::is_same_v<Out, double>;
  Out* y;
  const In* x;
  int channels;
  bool narrow;  // fewer than 2^31 elements
  Real scale[4];
  Real shift[4];
  PENSTOCK_HD void operator()(i64 i) const {
    // Divisions of 32 bits are several times faster.
    const int c = channels == 1 ? 0
                  : narrow      ? int(std::uint32_t(i) % std::uint32_t(channels))
                                : int(i % channels);
    const int k = c < 4 ? c : 3;
    y[i] = kernels::store<Out>(Real(x[i]) * scale[k] + shift[k]);
  }
};

}  // namespace

Tensor image_input(const Tensor& x, const ImageInput& o) {
  const trace::Op op("image_input", trace::Phase::kInput);
  check(x.dtype() == DType::u8 || x.dtype() == DType::f32,
        "image_input: {}; expected u8 or f32 pixels", x);
  check(x.rank() >= 2, "image_input: {}; expected [N, ..., C]", x);
  const Tensor y = Tensor::empty(x.shape(), o.dtype, x.device());
  ledger::kernel({&x}, {&y}, 2.0 * double(x.numel()));
  const auto launch = [&]<class In, class Out>() {
    Normalise<In, Out> f{.y = y.data<Out>(),
                         .x = x.data<In>(),
                         .channels = int(x.dim(-1)),
                         .narrow = x.numel() < (i64{1} << 31),
                         .scale = {},
                         .shift = {}};
    for (std::size_t k = 0; k < 4; ++k) {
      check(o.deviation[k] > 0, "image_input: a deviation of {}; expected a positive one",
            o.deviation[k]);
      using Real = compute_t<Out>;
      f.scale[k] = (x.dtype() == DType::u8 ? Real(1) / Real(255) : Real(1)) / Real(o.deviation[k]);
      f.shift[k] = -Real(o.mean[k]) / Real(o.deviation[k]);
    }
    kernels::for_each(x.device(), x.numel(), f);
  };
  visit_float(o.dtype, "image_input", [&]<class Out>() {
    if (x.dtype() == DType::u8) {
      launch.template operator()<std::uint8_t, Out>();
    } else {
      launch.template operator()<float, Out>();
    }
  });
  return y;
}

}  // namespace penstock::ops
