#include "framework/kernels/dnn.h"

#include "framework/core/ledger.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/dnn_cpu.h"
#include "framework/kernels/dnn_cuda.h"

namespace penstock::kernels {
namespace {

bool on_cuda(Device device) { return device.models == DeviceType::kCuda; }

// Every size is what the geometry says: a library reads and writes by the geometry alone.
void check_conv(const Conv& c, const Tensor& x, const Tensor& w, const Tensor& y) {
  bool possible = c.n >= 0 && c.groups >= 1 && c.channels >= 1 && c.filters >= 1 &&
                  c.channels % c.groups == 0 && c.filters % c.groups == 0;
  for (std::size_t i = 0; i < 3; ++i) {
    possible = possible && c.kernel[i] >= 1 && c.stride[i] >= 1 && c.dilation[i] >= 1 &&
               c.pad[i] >= 0 && c.out(int(i)) >= 1;
  }
  check(possible && x.numel() == c.n * c.in_pixels() * c.channels &&
            w.numel() == c.filters * c.taps() * (c.channels / c.groups) &&
            y.numel() == c.n * c.out_pixels() * c.filters,
        "convolution: input {}, weights {} and output {} do not fit each other", x, w, y);
  check(x.dtype() == y.dtype() && is_float(x.dtype()) && x.device() == y.device() &&
            x.device() == w.device(),
        "convolution: input {}, weights {} and output {} differ in dtype or device", x, w, y);
}

}  // namespace

void conv_forward(const Conv& c, const ConvForward& t) {
  check_conv(c, t.x, t.w, t.y);
  check(t.w.dtype() == t.x.dtype() &&
            (!t.bias.defined() ||
             (t.bias.dtype() == t.x.dtype() && t.bias.numel() == c.filters)),
        "convolution: input {}, weights {} and bias {} differ in dtype or size", t.x, t.w, t.bias);
  ledger::kernel({&t.x, &t.w, &t.bias}, {&t.y}, c.flops());
  if (c.n == 0) {
    return;
  }
  if (on_cuda(t.y.device())) {
    conv_forward_cuda(c, t);
  } else {
    conv_forward_cpu(c, t);
  }
}

void conv_backward_data(const Conv& c, const Tensor& dy, const Tensor& w, const Tensor& dx) {
  check_conv(c, dx, w, dy);
  check(w.dtype() == dy.dtype(), "convolution: gradient {} and weights {} differ in dtype", dy, w);
  ledger::kernel({&dy, &w}, {&dx}, c.flops());
  if (c.n == 0) {
    return;
  }
  if (on_cuda(dx.device())) {
    conv_backward_data_cuda(c, dy, w, dx);
  } else {
    conv_backward_data_cpu(c, dy, w, dx);
  }
}

void conv_backward_weights(const Conv& c, const Tensor& x, const Tensor& dy, const Tensor& dw,
                           double beta) {
  check_conv(c, x, dw, dy);
  check(dw.dtype() == x.dtype() || (dw.dtype() == DType::f32 && is_half(x.dtype())),
        "convolution: {} operands cannot give weight gradients in {}", x.dtype(), dw.dtype());
  check(beta == 0 || beta == 1,
        "convolution: weight gradients are overwritten or added to, beta {} is neither", beta);
  ledger::kernel({&x, &dy, beta != 0 ? &dw : nullptr}, {&dw}, c.flops());
  if (c.n == 0) {
    if (beta == 0) {
      fill(dw, 0);
    }
    return;
  }
  if (on_cuda(dw.device())) {
    conv_backward_weights_cuda(c, x, dy, dw, beta);
  } else {
    conv_backward_weights_cpu(c, x, dy, dw, beta);
  }
}

std::array<std::string, 3> conv_implementations(const Conv& c, DType dtype, Device device) {
  return on_cuda(device) ? conv_implementations_cuda(c, dtype) : conv_implementations_cpu(c, dtype);
}

}  // namespace penstock::kernels
