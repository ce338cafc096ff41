// The CPU side of dnn.h; on meta(cpu) the workspace that a call would hold.
#pragma once

#include "framework/kernels/dnn.h"

namespace penstock::kernels {

void conv_forward_cpu(const Conv& c, const ConvForward& t);
void conv_backward_data_cpu(const Conv& c, const Tensor& dy, const Tensor& w, const Tensor& dx);
void conv_backward_weights_cpu(const Conv& c, const Tensor& x, const Tensor& dy, const Tensor& dw,
                               double beta);
std::array<std::string, 3> conv_implementations_cpu(const Conv& c, DType dtype);

}  // namespace penstock::kernels
