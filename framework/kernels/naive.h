// Plain kernels of our own behind the library seams: f64, machines without the libraries, tests.
#pragma once

#include "framework/kernels/blas.h"

namespace penstock::kernels::naive {

void gemm(const Gemm& g);

}  // namespace penstock::kernels::naive
