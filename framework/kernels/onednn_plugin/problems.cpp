#include "framework/kernels/onednn_plugin/problems.h"

#include <algorithm>
#include <cstring>

#include "framework/kernels/onednn_plugin/descriptors.h"

namespace penstock_onednn {
namespace {

using dnnl::memory;
using Md = memory::desc;
using Dims = memory::dims;
using Type = memory::data_type;

// Leaked: problems may outlive any static destructor.
const dnnl::engine& engine() {
  static const auto* e = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *e;
}
const dnnl::stream& stream() {
  static const auto* s = new dnnl::stream(engine());
  return *s;
}

Type type_of(int32_t dtype) {
  switch (dtype) {
    case 1: return Type::f32;
    case 2: return Type::f16;
    case 3: return Type::bf16;
    default: throw Unsupported{"dtype"};
  }
}

dnnl::primitive_attr attributes(const dnnl::post_ops& ops = {}) {
  dnnl::primitive_attr attr;
  // The caller gives the memory: it is in the plan, and primitives may run on several threads.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attr.set_post_ops(ops);
  return attr;
}

bool begins_with(const std::string& text, const char* start) {
  return text.compare(0, std::strlen(start), start) == 0;
}

// The library's reference code is thousands of times slower than the rest of it.
template <class Descriptor>
std::string optimised_name(const Descriptor& pd) {
  const std::string name = pd.impl_info_str();
  if (begins_with(name, "ref") || begins_with(name, "simple")) {
    throw Unsupported{name};
  }
  return name;
}

}  // namespace

// Collects the stages of a problem and lays out its workspace.
class Builder {
 public:
  explicit Builder(Problem& p) : p_(p) {}

  // Memory at a caller's pointer.
  dnnl_memory_t at(Source source, const Md& md) { return bind(md, source, 0); }
  // Memory in the workspace that lives for the whole run.
  dnnl_memory_t hold(const Md& md) {
    const std::uint64_t offset = held_;
    held_ += (md.get_size() + 127) / 128 * 128;
    return bind(md, Source::kWorkspace, offset);
  }
  void stage(const dnnl::primitive& primitive, const Md& scratchpad,
             std::vector<dnnl_exec_arg_t> args) {
    p_.stages_.push_back({primitive, std::move(args)});
    scratchpads_.push_back(scratchpad);
  }
  void reorder(dnnl_memory_t from, const Md& from_md, dnnl_memory_t to, const Md& to_md, bool add) {
    dnnl::post_ops ops;
    if (add) {
      ops.append_sum(1.0F);
    }
    const dnnl::reorder::primitive_desc pd(engine(), from_md, engine(), to_md, attributes(ops));
    stage(dnnl::reorder(pd), pd.scratchpad_desc(),
          {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
  }
  // Scratchpads share what lies behind the held memory: stages run one after the other.
  void finish(std::string name) {
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < scratchpads_.size(); ++i) {
      if (scratchpads_[i].get_size() > 0) {
        most = std::max<std::uint64_t>(most, scratchpads_[i].get_size());
        p_.stages_[i].args.push_back(
            {DNNL_ARG_SCRATCHPAD, bind(scratchpads_[i], Source::kWorkspace, held_)});
      }
    }
    p_.workspace = held_ + most;
    p_.name = std::move(name);
  }
  void sgemm(const PenstockOnednnMatmul& g) {
    p_.sgemm_ = true;
    p_.matmul_ = g;
    p_.name = "sgemm";
  }

 private:
  dnnl_memory_t bind(const Md& md, Source source, std::uint64_t offset) {
    p_.bound_.push_back({memory(md, engine(), nullptr), source, offset});
    return p_.bound_.back().memory.get();
  }
  Problem& p_;
  std::uint64_t held_ = 0;
  std::vector<Md> scratchpads_;
};

void Problem::run(const PenstockOnednnCall& call) {
  if (sgemm_) {
    const PenstockOnednnMatmul& g = matmul_;
    dnnl::error::wrap_c_api(
        dnnl_sgemm(g.trans_a != 0 ? 'T' : 'N', g.trans_b != 0 ? 'T' : 'N', g.m, g.n, g.k, g.alpha,
                   static_cast<const float*>(call.a), g.lda, static_cast<const float*>(call.b),
                   g.ldb, g.beta, static_cast<float*>(call.c), g.ldc),
        "sgemm failed");
    return;
  }
  const std::lock_guard lock(mutex_);
  for (Bound& b : bound_) {
    const void* base = b.source == Source::kA      ? call.a
                       : b.source == Source::kB    ? call.b
                       : b.source == Source::kBias ? call.bias
                       : b.source == Source::kC    ? call.c
                                                   : call.workspace;
    b.memory.set_data_handle(static_cast<char*>(const_cast<void*>(base)) + b.offset);
  }
  for (const Stage& s : stages_) {
    dnnl::error::wrap_c_api(dnnl_primitive_execute(s.primitive.get(), stream().get(),
                                                   int(s.args.size()), s.args.data()),
                            "could not execute a primitive");
  }
}

namespace {

// Where the library's plain sgemm beats its matrix-product primitive (measured with 2.6 and 3.2):
// long sums over rows, as for weight gradients, by 10 %, and wide results by 6-9 %. It packs into a
// few buffers of its own, at most some MiB per thread.
bool prefers_sgemm(const PenstockOnednnMatmul& g) {
  if (g.dtype != 1 || g.batch != 1 || g.with_bias != 0 || g.relu != 0) {
    return false;
  }
  if (g.trans_a != 0) {
    return g.trans_b == 0 && g.k >= 1024;
  }
  return g.n >= 1024 && g.m >= 512;
}

}  // namespace

void build(Problem& problem, const PenstockOnednnMatmul& g) {
  Builder b(problem);
  if (prefers_sgemm(g)) {
    b.sgemm(g);
    return;
  }
  const bool batched = g.batch > 1;
  // A stride of 0 repeats the operand for every product.
  const auto describe = [&](int32_t dtype, int64_t rows, int64_t cols, const Dims& strides,
                            int64_t stride) {
    if (!batched) {
      return Md({rows, cols}, type_of(dtype), strides);
    }
    const int64_t size = stride == 0 ? 1 : g.batch;
    return Md({size, rows, cols}, type_of(dtype),
              {stride == 0 ? rows * cols : stride, strides[0], strides[1]});
  };
  MatmulMemory m;
  m.a = describe(g.dtype, g.m, g.k, g.trans_a != 0 ? Dims{1, g.lda} : Dims{g.lda, 1}, g.stride_a);
  m.b = describe(g.dtype, g.k, g.n, g.trans_b != 0 ? Dims{1, g.ldb} : Dims{g.ldb, 1}, g.stride_b);
  m.c = describe(g.dtype_c, g.m, g.n, {g.ldc, 1}, g.stride_c);
  if (g.with_bias != 0) {
    m.bias = batched ? Md({1, 1, g.n}, type_of(g.dtype), Dims{g.n, g.n, 1})
                     : Md({1, g.n}, type_of(g.dtype), Dims{g.n, 1});
  }
  dnnl::post_ops ops;
  if (g.alpha != 1) {
    append_scale(ops, g.alpha);
  }
  if (g.beta != 0) {
    ops.append_sum(g.beta);
  }
  if (g.relu != 0) {
    append_relu(ops);
  }
  const auto pd = matmul(m, attributes(ops), engine());
  std::vector<dnnl_exec_arg_t> args = {{DNNL_ARG_SRC, b.at(Source::kA, m.a)},
                                       {DNNL_ARG_WEIGHTS, b.at(Source::kB, m.b)},
                                       {DNNL_ARG_DST, b.at(Source::kC, m.c)}};
  if (g.with_bias != 0) {
    args.push_back({DNNL_ARG_BIAS, b.at(Source::kBias, m.bias)});
  }
  b.stage(dnnl::matmul(pd), pd.scratchpad_desc(), std::move(args));
  b.finish(optimised_name(pd));
}

namespace {

// Extents of the axes that take part: height and width, with depth in front in 3-D.
Dims axes(const PenstockOnednnConv& c, const int64_t (&v)[3]) {
  return c.spatial == 3 ? Dims{v[0], v[1], v[2]} : Dims{v[1], v[2]};
}

// Strides of memory whose axis `last` is innermost, after the axes behind it.
Dims channels_last(const Dims& dims, std::size_t last) {
  Dims strides(dims.size());
  memory::dim step = dims[last];
  strides[last] = 1;
  for (std::size_t i = dims.size() - 1; i > last; --i) {
    strides[i] = step;
    step *= dims[i];
  }
  for (std::size_t i = last; i-- > 0;) {
    strides[i] = step;
    step *= dims[i];
  }
  return strides;
}

struct ConvShapes {
  Dims x, w, y;
  std::size_t filter_axis = 1;  // the axis of w that holds C / groups
};

ConvShapes shapes_of(const PenstockOnednnConv& c) {
  ConvShapes s;
  s.x = {c.n, c.c};
  s.y = {c.n, c.k};
  s.w = {c.k, c.c};
  if (c.groups > 1) {
    s.w = {c.groups, c.k / c.groups, c.c / c.groups};
    s.filter_axis = 2;
  }
  const auto append = [](Dims& to, const Dims& tail) {
    to.insert(to.end(), tail.begin(), tail.end());
  };
  append(s.x, axes(c, c.in));
  append(s.y, axes(c, c.out));
  append(s.w, axes(c, c.kernel));
  return s;
}

}  // namespace

void build(Problem& problem, const PenstockOnednnConv& c) {
  Builder b(problem);
  const ConvShapes s = shapes_of(c);
  const Type type = type_of(c.dtype);
  ConvMemory m;
  m.x = Md(s.x, type, channels_last(s.x, 1));
  m.y = Md(s.y, type, channels_last(s.y, 1));
  m.stride = axes(c, c.stride);
  m.pad = axes(c, c.pad);
  m.dilation = axes(c, c.dilation);
  for (auto& d : m.dilation) {
    --d;
  }
  // The library picks the layout of the weights: with plain ones only reference code exists. They
  // are repacked at every call, less than 1 % of the work, since they change every step.
  const bool weights = c.pass == kPenstockOnednnBackwardWeights;
  const Type stored = weights ? type_of(c.dtype_dw) : type;
  const Md plain(s.w, stored, channels_last(s.w, s.filter_axis));
  m.w = Md(s.w, weights ? Type::f32 : type, memory::format_tag::any);

  if (c.pass == kPenstockOnednnForward) {
    if (c.with_bias != 0) {
      m.bias = Md({c.k}, type, Dims{1});
    }
    dnnl::post_ops ops;
    if (c.relu != 0) {
      append_relu(ops);
    }
    const auto pd = forward(m, attributes(ops), engine(), c.c / c.groups <= 4);
    const Md packed = pd.weights_desc();
    dnnl_memory_t w = b.at(Source::kB, plain);
    if (packed != plain) {
      dnnl_memory_t to = b.hold(packed);
      b.reorder(w, plain, to, packed, false);
      w = to;
    }
    std::vector<dnnl_exec_arg_t> args = {{DNNL_ARG_SRC, b.at(Source::kA, m.x)},
                                         {DNNL_ARG_WEIGHTS, w},
                                         {DNNL_ARG_DST, b.at(Source::kC, m.y)}};
    if (c.with_bias != 0) {
      args.push_back({DNNL_ARG_BIAS, b.at(Source::kBias, m.bias)});
    }
    b.stage(dnnl::convolution_forward(pd), pd.scratchpad_desc(), std::move(args));
    b.finish(optimised_name(pd));
  } else if (c.pass == kPenstockOnednnBackwardData) {
    const auto pd = backward_data(m, attributes(), engine());
    const Md packed = pd.weights_desc();
    dnnl_memory_t w = b.at(Source::kB, plain);
    if (packed != plain) {
      dnnl_memory_t to = b.hold(packed);
      b.reorder(w, plain, to, packed, false);
      w = to;
    }
    b.stage(dnnl::convolution_backward_data(pd), pd.scratchpad_desc(),
            {{DNNL_ARG_DIFF_DST, b.at(Source::kA, m.y)},
             {DNNL_ARG_WEIGHTS, w},
             {DNNL_ARG_DIFF_SRC, b.at(Source::kC, m.x)}});
    b.finish(optimised_name(pd));
  } else {
    const auto pd = backward_weights(m, attributes(), engine());
    const Md packed = pd.diff_weights_desc();
    const bool direct = packed == plain && c.add == 0;
    dnnl_memory_t dw = direct ? b.at(Source::kC, plain) : b.hold(packed);
    b.stage(dnnl::convolution_backward_weights(pd), pd.scratchpad_desc(),
            {{DNNL_ARG_SRC, b.at(Source::kA, m.x)},
             {DNNL_ARG_DIFF_DST, b.at(Source::kB, m.y)},
             {DNNL_ARG_DIFF_WEIGHTS, dw}});
    if (!direct) {
      b.reorder(dw, packed, b.at(Source::kC, plain), plain, c.add != 0);
    }
    b.finish(optimised_name(pd));
  }
}

}  // namespace penstock_onednn
