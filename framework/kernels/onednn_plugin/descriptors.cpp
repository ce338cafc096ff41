#include "framework/kernels/onednn_plugin/descriptors.h"

#include <string_view>

namespace penstock_onednn {
namespace {

using dnnl::algorithm;
using dnnl::prop_kind;

bool defined(const dnnl::memory::desc& md) { return md != dnnl::memory::desc(); }

bool begins_with(const dnnl::convolution_forward::primitive_desc& pd, std::string_view start) {
  return std::string_view(pd.impl_info_str()).substr(0, start.size()) == start;
}

// The library's first choice by `make`, or the next implementation made for first layers, which is up
// to 2x faster with so few channels. Going on to the next one reads the descriptors that `make` was
// given: they must outlive this call.
template <class Make>
dnnl::convolution_forward::primitive_desc choose(const Make& make, bool first_layer) {
  auto pd = make();
  if (first_layer && begins_with(pd, "brg")) {
    auto next = make();
    while (next.next_impl()) {
      if (begins_with(next, "jit")) {
        return next;
      }
    }
  }
  return pd;
}

// Backward passes want a forward descriptor as a hint; it needs neither bias nor post-ops.
dnnl::convolution_forward::primitive_desc hint(const ConvMemory& m, const dnnl::engine& engine) {
  ConvMemory plain = m;
  plain.bias = dnnl::memory::desc();
  plain.w = dnnl::memory::desc(m.w.dims(), m.x.data_type(), dnnl::memory::format_tag::any);
  return forward(plain, dnnl::primitive_attr(), engine);
}

}  // namespace

#if DNNL_VERSION_MAJOR < 3

// 2.x: an operation descriptor, then the primitive's.
dnnl::convolution_forward::primitive_desc forward(const ConvMemory& m,
                                                  const dnnl::primitive_attr& attr,
                                                  const dnnl::engine& engine, bool first_layer) {
  using Op = dnnl::convolution_forward::desc;
  constexpr auto kKind = prop_kind::forward_training;
  constexpr auto kHow = algorithm::convolution_direct;
  const Op op = defined(m.bias) ? Op(kKind, kHow, m.x, m.w, m.bias, m.y, m.stride, m.dilation,
                                     m.pad, m.pad)
                                : Op(kKind, kHow, m.x, m.w, m.y, m.stride, m.dilation, m.pad, m.pad);
  return choose(
      [&] { return dnnl::convolution_forward::primitive_desc(op, attr, engine); }, first_layer);
}

dnnl::convolution_backward_data::primitive_desc backward_data(const ConvMemory& m,
                                                              const dnnl::primitive_attr& attr,
                                                              const dnnl::engine& engine) {
  const dnnl::convolution_backward_data::desc op(algorithm::convolution_direct, m.x, m.w, m.y,
                                                 m.stride, m.dilation, m.pad, m.pad);
  return {op, attr, engine, hint(m, engine)};
}

dnnl::convolution_backward_weights::primitive_desc backward_weights(
    const ConvMemory& m, const dnnl::primitive_attr& attr, const dnnl::engine& engine) {
  const dnnl::convolution_backward_weights::desc op(algorithm::convolution_direct, m.x, m.w, m.y,
                                                    m.stride, m.dilation, m.pad, m.pad);
  return {op, attr, engine, hint(m, engine)};
}

dnnl::matmul::primitive_desc matmul(const MatmulMemory& m, const dnnl::primitive_attr& attr,
                                    const dnnl::engine& engine) {
  const auto op = defined(m.bias) ? dnnl::matmul::desc(m.a, m.b, m.bias, m.c)
                                  : dnnl::matmul::desc(m.a, m.b, m.c);
  return {op, attr, engine};
}

void append_relu(dnnl::post_ops& ops) {
  ops.append_eltwise(1.0F, algorithm::eltwise_relu, 0.0F, 0.0F);
}
void append_scale(dnnl::post_ops& ops, float factor) {
  ops.append_eltwise(1.0F, algorithm::eltwise_linear, factor, 0.0F);
}

#else

dnnl::convolution_forward::primitive_desc forward(const ConvMemory& m,
                                                  const dnnl::primitive_attr& attr,
                                                  const dnnl::engine& engine, bool first_layer) {
  using Descriptor = dnnl::convolution_forward::primitive_desc;
  constexpr auto kKind = prop_kind::forward_training;
  constexpr auto kHow = algorithm::convolution_direct;
  const auto make = [&] {
    return defined(m.bias) ? Descriptor(engine, kKind, kHow, m.x, m.w, m.bias, m.y, m.stride,
                                        m.dilation, m.pad, m.pad, attr)
                           : Descriptor(engine, kKind, kHow, m.x, m.w, m.y, m.stride, m.dilation,
                                        m.pad, m.pad, attr);
  };
  return choose(make, first_layer);
}

dnnl::convolution_backward_data::primitive_desc backward_data(const ConvMemory& m,
                                                              const dnnl::primitive_attr& attr,
                                                              const dnnl::engine& engine) {
  return {engine,     algorithm::convolution_direct, m.x,   m.w,   m.y,
          m.stride,   m.dilation,                    m.pad, m.pad, hint(m, engine),
          attr};
}

dnnl::convolution_backward_weights::primitive_desc backward_weights(
    const ConvMemory& m, const dnnl::primitive_attr& attr, const dnnl::engine& engine) {
  return {engine,     algorithm::convolution_direct, m.x,   m.w,   m.y,
          m.stride,   m.dilation,                    m.pad, m.pad, hint(m, engine),
          attr};
}

dnnl::matmul::primitive_desc matmul(const MatmulMemory& m, const dnnl::primitive_attr& attr,
                                    const dnnl::engine& engine) {
  using Descriptor = dnnl::matmul::primitive_desc;
  return defined(m.bias) ? Descriptor(engine, m.a, m.b, m.bias, m.c, attr)
                         : Descriptor(engine, m.a, m.b, m.c, attr);
}

void append_relu(dnnl::post_ops& ops) { ops.append_eltwise(algorithm::eltwise_relu, 0.0F, 0.0F); }
void append_scale(dnnl::post_ops& ops, float factor) {
  ops.append_eltwise(algorithm::eltwise_linear, factor, 0.0F);
}

#endif

const char* name_of(dnnl::cpu_isa isa) {
  // Numbers, not enumerators: each major version knows others.
  switch (static_cast<unsigned>(isa)) {
    case 0x1: return "sse41";
    case 0x3: return "avx";
    case 0x7: return "avx2";
#if DNNL_VERSION_MAJOR < 3
    case 0x407: return "avx2_vnni";
#else
    case 0xf: return "avx2_vnni";
    case 0x1f: return "avx2_vnni_2";
#endif
    case 0x27: return "avx512_core";
    case 0x67: return "avx512_core_vnni";
    case 0xe7: return "avx512_core_bf16";
    case 0x1ef: return "avx512_core_fp16";
    case 0x3e7:
    case 0xfef: return "avx512_core_amx";
    case 0x1fef: return "avx512_core_amx_fp16";
    default: return "plain";
  }
}

}  // namespace penstock_onednn
