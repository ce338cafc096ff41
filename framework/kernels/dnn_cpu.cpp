#include "framework/kernels/dnn_cpu.h"

#include "framework/core/log.h"
#include "framework/kernels/naive.h"
#include "framework/kernels/onednn.h"

namespace penstock::kernels {
namespace {

PenstockOnednnConv describe(const Conv& c, int32_t pass, DType dtype) {
  PenstockOnednnConv d{};
  d.pass = pass;
  d.spatial = c.in[0] == 1 && c.kernel[0] == 1 && c.pad[0] == 0 ? 2 : 3;
  d.dtype = int32_t(dtype);
  d.n = c.n;
  d.c = c.channels;
  d.k = c.filters;
  d.groups = c.groups;
  for (std::size_t i = 0; i < 3; ++i) {
    d.in[i] = c.in[i];
    d.out[i] = c.out(int(i));
    d.kernel[i] = c.kernel[i];
    d.stride[i] = c.stride[i];
    d.pad[i] = c.pad[i];
    d.dilation[i] = c.dilation[i];
  }
  return d;
}

// f64 stays with our own kernels, f16 as well unless the CPU has its arithmetic.
bool library_dtype(DType dtype, const char* op) {
  require_cpu_arithmetic(dtype, op);
  const PenstockOnednnPlugin* library = onednn();
  return dtype != DType::f64 && library != nullptr && library->usable(int32_t(dtype)) != 0;
}

// False: the library has nothing optimised for it.
bool run_library(const PenstockOnednnConv& d, const PenstockOnednnCall& call, Device device) {
  const OnednnProblem problem(d);
  if (!problem) {
    log::warn_once(format("conv {} {} {}", d.pass, d.c, d.k),
                   format("cpu: oneDNN has no optimised convolution for {} to {} channels (pass "
                          "{}); a plain kernel does it",
                          d.c, d.k, d.pass));
    return false;
  }
  problem.run(call, device);
  return true;
}

}  // namespace

void conv_forward_cpu(const Conv& c, const ConvForward& t) {
  if (library_dtype(t.x.dtype(), "convolution")) {
    PenstockOnednnConv d = describe(c, kPenstockOnednnForward, t.x.dtype());
    d.with_bias = t.bias.defined() ? 1 : 0;
    d.relu = t.relu ? 1 : 0;
    if (run_library(d, {.a = t.x.raw(), .b = t.w.raw(), .bias = t.bias.raw(), .c = t.y.raw()},
                    t.y.device())) {
      return;
    }
  }
  naive::conv_forward(c, t);
}

void conv_backward_data_cpu(const Conv& c, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  if (library_dtype(dy.dtype(), "convolution") &&
      run_library(describe(c, kPenstockOnednnBackwardData, dy.dtype()),
                  {.a = dy.raw(), .b = w.raw(), .c = dx.raw()}, dx.device())) {
    return;
  }
  naive::conv_backward_data(c, dy, w, dx);
}

void conv_backward_weights_cpu(const Conv& c, const Tensor& x, const Tensor& dy, const Tensor& dw,
                               double beta) {
  if (library_dtype(x.dtype(), "convolution")) {
    PenstockOnednnConv d = describe(c, kPenstockOnednnBackwardWeights, x.dtype());
    d.dtype_dw = int32_t(dw.dtype());
    d.add = beta != 0 ? 1 : 0;
    if (run_library(d, {.a = x.raw(), .b = dy.raw(), .c = dw.raw()}, dw.device())) {
      return;
    }
  }
  naive::conv_backward_weights(c, x, dy, dw, beta);
}

std::array<std::string, 3> conv_implementations_cpu(const Conv& c, DType dtype) {
  std::array<std::string, 3> names;
  for (int32_t pass = 0; pass < 3; ++pass) {
    std::string& name = names[std::size_t(pass)];
    name = "naive";
    if (library_dtype(dtype, "convolution")) {
      PenstockOnednnConv d = describe(c, pass, dtype);
      d.dtype_dw = pass == kPenstockOnednnBackwardWeights ? int32_t(DType::f32) : 0;
      const OnednnProblem problem(d);
      name = problem ? problem.name() : name;
    }
  }
  return names;
}

}  // namespace penstock::kernels
