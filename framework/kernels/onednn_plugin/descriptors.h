// The part of oneDNN's interface that changed between 2.x and 3.x, behind one set of functions. All
// throw dnnl::error.
#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>

namespace penstock_onednn {

// Memory of a convolution: x and y channels last, weights as given, `bias` a zero descriptor
// without one.
struct ConvMemory {
  dnnl::memory::desc x, w, bias, y;
  dnnl::memory::dims stride, dilation, pad;  // dilation 0 is dense
};

// `first_layer`: few input channels, for which the library's first choice may not be the fastest.
dnnl::convolution_forward::primitive_desc forward(const ConvMemory& m,
                                                  const dnnl::primitive_attr& attr,
                                                  const dnnl::engine& engine,
                                                  bool first_layer = false);
dnnl::convolution_backward_data::primitive_desc backward_data(const ConvMemory& m,
                                                              const dnnl::primitive_attr& attr,
                                                              const dnnl::engine& engine);
dnnl::convolution_backward_weights::primitive_desc backward_weights(
    const ConvMemory& m, const dnnl::primitive_attr& attr, const dnnl::engine& engine);

struct MatmulMemory {
  dnnl::memory::desc a, b, bias, c;  // `bias` a zero descriptor without one
};
dnnl::matmul::primitive_desc matmul(const MatmulMemory& m, const dnnl::primitive_attr& attr,
                                    const dnnl::engine& engine);

void append_relu(dnnl::post_ops& ops);
// y becomes factor y.
void append_scale(dnnl::post_ops& ops, float factor);

// Name of an instruction set, as the library numbers it.
const char* name_of(dnnl::cpu_isa isa);

}  // namespace penstock_onednn
