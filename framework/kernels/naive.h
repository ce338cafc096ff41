// Plain kernels of our own behind the library seams: f64, machines without the libraries, tests.
#pragma once

#include "framework/kernels/blas.h"
#include "framework/kernels/dnn.h"

namespace penstock::kernels::naive {

void gemm(const Gemm& g);
// What is left of a product that a library stored without its epilogue: the bias (unless
// `bias_done`), the activation or its derivative, applied to g.c in place. For kBiasGelu the product
// is in g.aux and g.c receives the result. One product only (batch 1).
void finish(const Gemm& g, bool bias_done);

void conv_forward(const Conv& c, const ConvForward& t);
void conv_backward_data(const Conv& c, const Tensor& dy, const Tensor& w, const Tensor& dx);
void conv_backward_weights(const Conv& c, const Tensor& x, const Tensor& dy, const Tensor& dw,
                           double beta);

}  // namespace penstock::kernels::naive
