#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "framework/core/ledger.h"
#include "framework/kernels/dnn.h"
#include "framework/kernels/naive.h"
#include "framework/kernels/onednn.h"
#include "tests/kernels_helpers.h"

namespace penstock::kernels {
namespace {

using kernel_test::distance;
using kernel_test::random_tensor;
using kernel_test::sum_bound;
using kernel_test::unit;

struct Case {
  const char* name;
  Conv conv;
};

Conv conv2d(i64 n, i64 h, i64 w, i64 channels, i64 filters, i64 kernel, i64 stride, i64 pad,
            i64 groups = 1, i64 dilation = 1) {
  Conv c;
  c.n = n;
  c.channels = channels;
  c.filters = filters;
  c.groups = groups;
  c.in = {1, h, w};
  c.kernel = {1, kernel, kernel};
  c.stride = {1, stride, stride};
  c.pad = {0, pad, pad};
  c.dilation = {1, dilation, dilation};
  return c;
}

Conv conv3d(i64 n, i64 d, i64 h, i64 w, i64 channels, i64 filters, i64 kernel, i64 stride, i64 pad,
            i64 groups = 1) {
  Conv c = conv2d(n, h, w, channels, filters, kernel, stride, pad, groups);
  c.in[0] = d;
  c.kernel[0] = kernel;
  c.stride[0] = stride;
  c.pad[0] = pad;
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> all = {
      {"3x3", conv2d(2, 8, 8, 16, 16, 3, 1, 1)},
      {"3x3, odd everything", conv2d(3, 9, 11, 5, 7, 3, 1, 1)},
      {"3x3 stride 2", conv2d(2, 9, 9, 8, 12, 3, 2, 1)},
      {"3x3 without padding", conv2d(1, 7, 6, 4, 4, 3, 1, 0)},
      {"3x3 dilation 2", conv2d(2, 11, 10, 6, 9, 3, 1, 2, 1, 2)},
      {"3x3 stride 3 dilation 2 pad 1", conv2d(1, 13, 14, 8, 8, 3, 3, 1, 1, 2)},
      {"1x1", conv2d(2, 6, 6, 20, 33, 1, 1, 0)},
      {"1x1 stride 2", conv2d(2, 7, 7, 16, 24, 1, 2, 0)},
      {"7x7 stride 2 stem", conv2d(1, 23, 21, 3, 16, 7, 2, 3)},
      {"one channel", conv2d(2, 10, 10, 1, 8, 3, 1, 1)},
      {"one filter", conv2d(2, 6, 5, 8, 1, 3, 1, 1)},
      {"patches", conv2d(2, 16, 16, 3, 24, 4, 4, 0)},
      {"groups", conv2d(2, 8, 8, 12, 18, 3, 1, 1, 3)},
      {"groups stride 2", conv2d(1, 9, 8, 32, 32, 3, 2, 1, 2)},
      {"depthwise", conv2d(2, 9, 9, 16, 16, 3, 1, 1, 16)},
      {"depthwise, two filters each", conv2d(1, 7, 7, 6, 12, 3, 2, 1, 6)},
      {"5x5", conv2d(1, 12, 9, 4, 6, 5, 1, 2)},
      {"kernel as large as the image", conv2d(2, 5, 5, 3, 4, 5, 1, 0)},
      {"stride past the end", conv2d(1, 8, 8, 4, 4, 2, 3, 0)},
      {"wide", conv2d(1, 4, 4, 70, 66, 3, 1, 1)},
      {"3-D", conv3d(1, 5, 6, 7, 8, 8, 3, 1, 1)},
      {"3-D one channel", conv3d(2, 6, 6, 6, 1, 4, 3, 1, 1)},
      {"3-D stride 2 odd", conv3d(1, 7, 5, 9, 3, 5, 3, 2, 1)},
      {"3-D groups", conv3d(1, 4, 5, 4, 8, 8, 3, 1, 1, 2)},
      {"3-D 1x1", conv3d(2, 3, 4, 5, 6, 10, 1, 1, 0)},
      {"no sample", conv2d(0, 8, 8, 4, 4, 3, 1, 1)},
  };
  // Different extents along the axes.
  Conv uneven = conv2d(2, 9, 14, 6, 10, 3, 1, 1);
  uneven.kernel = {1, 5, 2};
  uneven.stride = {1, 1, 2};
  uneven.pad = {0, 2, 0};
  all.push_back({"5x2 stride 1x2", uneven});
  Conv flat = conv3d(1, 6, 7, 8, 4, 6, 3, 1, 1);
  flat.kernel = {1, 3, 3};
  flat.pad = {0, 1, 1};
  all.push_back({"3-D with a flat kernel", flat});
  return all;
}

struct Operands {
  Tensor x, w, bias, y, dx, dw;  // y also serves as dy
};

Operands operands(const Conv& c, DType dtype, DType dtype_dw) {
  const Shape x{c.n, c.in[0], c.in[1], c.in[2], c.channels};
  const Shape y{c.n, c.out(0), c.out(1), c.out(2), c.filters};
  const Shape w{c.filters, c.kernel[0], c.kernel[1], c.kernel[2], c.channels / c.groups};
  return {.x = random_tensor(x, dtype, 1),
          .w = random_tensor(w, dtype, 2),
          .bias = random_tensor({c.filters}, dtype, 3),
          .y = random_tensor(y, dtype, 4),
          .dx = random_tensor(x, dtype, 5),
          .dw = random_tensor(w, dtype_dw, 6)};
}

struct Results {
  std::vector<double> y, y_relu, dx, dw, dw_added;
};

// The definition: one loop nest over every product of an input, a weight and an output.
Results by_definition(const Conv& c) {
  const Operands o = operands(c, DType::f64, DType::f64);
  const auto x = o.x.values<double>();
  const auto w = o.w.values<double>();
  const auto bias = o.bias.values<double>();
  const auto dy = o.y.values<double>();
  Results r;
  r.y.assign(dy.size(), 0);
  r.dx.assign(x.size(), 0);
  r.dw.assign(w.size(), 0);
  const i64 in = c.channels / c.groups;
  const i64 out = c.filters / c.groups;
  i64 at_y = 0;
  for (i64 n = 0; n < c.n; ++n) {
    for (i64 d = 0; d < c.out(0); ++d) {
      for (i64 h = 0; h < c.out(1); ++h) {
        for (i64 v = 0; v < c.out(2); ++v) {
          for (i64 k = 0; k < c.filters; ++k, ++at_y) {
            for (i64 q = 0; q < c.kernel[0]; ++q) {
              for (i64 s = 0; s < c.kernel[1]; ++s) {
                for (i64 t = 0; t < c.kernel[2]; ++t) {
                  const i64 i = d * c.stride[0] - c.pad[0] + q * c.dilation[0];
                  const i64 j = h * c.stride[1] - c.pad[1] + s * c.dilation[1];
                  const i64 l = v * c.stride[2] - c.pad[2] + t * c.dilation[2];
                  if (i < 0 || i >= c.in[0] || j < 0 || j >= c.in[1] || l < 0 || l >= c.in[2]) {
                    continue;
                  }
                  for (i64 e = 0; e < in; ++e) {
                    const auto from = std::size_t(
                        (((n * c.in[0] + i) * c.in[1] + j) * c.in[2] + l) * c.channels +
                        k / out * in + e);
                    const auto by = std::size_t(
                        (((k * c.kernel[0] + q) * c.kernel[1] + s) * c.kernel[2] + t) * in + e);
                    r.y[std::size_t(at_y)] += x[from] * w[by];
                    r.dx[from] += dy[std::size_t(at_y)] * w[by];
                    r.dw[by] += dy[std::size_t(at_y)] * x[from];
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  r.y_relu = r.y;
  for (std::size_t i = 0; i < r.y.size(); ++i) {
    r.y_relu[i] = std::max(0.0, r.y[i] + bias[i % std::size_t(c.filters)]);
  }
  r.dw_added = o.dw.values<double>();
  for (std::size_t i = 0; i < r.dw.size(); ++i) {
    r.dw_added[i] += r.dw[i];
  }
  return r;
}

void compare(DType dtype, DType dtype_dw, bool naive_only) {
  for (const Case& test : cases()) {
    const Conv& c = test.conv;
    const Results expected = by_definition(c);
    const i64 reduced = c.taps() * (c.channels / c.groups);
    const i64 back = c.taps() * (c.filters / c.groups);
    const i64 pixels = std::max<i64>(1, c.n * c.out_pixels());
    const auto expect_near = [&](const Tensor& got, const std::vector<double>& want, i64 terms,
                                 const char* what) {
      EXPECT_LE(distance(got.values<double>(), want), sum_bound(got.dtype(), terms))
          << test.name << ", " << name_of(dtype) << ": " << what;
    };
    Operands o = operands(c, dtype, dtype_dw);
    const auto forward = [&](const ConvForward& t) {
      naive_only ? naive::conv_forward(c, t) : conv_forward(c, t);
    };
    forward({.x = o.x, .w = o.w, .bias = Tensor(), .y = o.y});
    expect_near(o.y, expected.y, reduced, "forward");
    forward({.x = o.x, .w = o.w, .bias = o.bias, .y = o.y, .relu = true});
    expect_near(o.y, expected.y_relu, reduced, "forward with bias and ReLU");

    o = operands(c, dtype, dtype_dw);
    naive_only ? naive::conv_backward_data(c, o.y, o.w, o.dx)
               : conv_backward_data(c, o.y, o.w, o.dx);
    expect_near(o.dx, expected.dx, back, "backward data");
    const auto weights = [&](double beta) {
      naive_only ? naive::conv_backward_weights(c, o.x, o.y, o.dw, beta)
                 : conv_backward_weights(c, o.x, o.y, o.dw, beta);
    };
    weights(1);
    // The sum may be rounded before it is added.
    EXPECT_LE(distance(o.dw.values<double>(), expected.dw_added),
              2 * unit(dtype_dw) + sum_bound(dtype_dw, pixels))
        << test.name << ", " << name_of(dtype) << ": backward weights, added";
    weights(0);
    expect_near(o.dw, expected.dw, pixels, "backward weights");
  }
}

TEST(Conv, PlainKernelsMatchTheDefinitionInF64) { compare(DType::f64, DType::f64, true); }
TEST(Conv, PlainKernelsMatchTheDefinitionInF32) { compare(DType::f32, DType::f32, true); }
TEST(Conv, PlainKernelsMatchTheDefinitionInBf16) {
  compare(DType::bf16, DType::f32, true);
  compare(DType::bf16, DType::bf16, true);
}
TEST(Conv, F64MatchesTheDefinition) { compare(DType::f64, DType::f64, false); }
TEST(Conv, F32MatchesTheDefinition) { compare(DType::f32, DType::f32, false); }
TEST(Conv, F16MatchesTheDefinition) { compare(DType::f16, DType::f32, false); }
TEST(Conv, Bf16MatchesTheDefinition) {
  if (!cpu_bf16_usable()) {
    GTEST_SKIP() << "no bf16 on this CPU";
  }
  compare(DType::bf16, DType::f32, false);
  compare(DType::bf16, DType::bf16, false);
}

TEST(Conv, NoSampleGivesZeroWeightGradients) {
  const Conv c = conv2d(0, 8, 8, 4, 4, 3, 1, 1);
  const Operands o = operands(c, DType::f32, DType::f32);
  const auto before = o.dw.values<float>();
  conv_backward_weights(c, o.x, o.y, o.dw, 1);
  EXPECT_EQ(o.dw.values<float>(), before);
  conv_backward_weights(c, o.x, o.y, o.dw, 0);
  EXPECT_EQ(o.dw.values<float>(), std::vector<float>(before.size(), 0));
}

TEST(Conv, IsTheSameBitsEveryTime) {
  const Conv c = conv2d(4, 14, 14, 32, 48, 3, 2, 1);
  const Operands a = operands(c, DType::f32, DType::f32);
  const Operands b = operands(c, DType::f32, DType::f32);
  for (const Operands* o : {&a, &b}) {
    conv_backward_data(c, o->y, o->w, o->dx);
    conv_backward_weights(c, o->x, o->y, o->dw, 1);
    conv_forward(c, {.x = o->x, .w = o->w, .bias = o->bias, .y = o->y, .relu = true});
  }
  EXPECT_EQ(a.y.values<float>(), b.y.values<float>());
  EXPECT_EQ(a.dx.values<float>(), b.dx.values<float>());
  EXPECT_EQ(a.dw.values<float>(), b.dw.values<float>());
}

TEST(Conv, OperandsThatDoNotFitAreRefused) {
  const Conv c = conv2d(2, 8, 8, 4, 6, 3, 1, 1);
  const Operands o = operands(c, DType::f32, DType::f32);
  Conv other = c;
  other.channels = 5;
  EXPECT_THROW(conv_forward(other, {.x = o.x, .w = o.w, .bias = Tensor(), .y = o.y}), Error);
  other = c;
  other.groups = 0;
  EXPECT_THROW(conv_forward(other, {.x = o.x, .w = o.w, .bias = Tensor(), .y = o.y}), Error);
  other = c;
  other.kernel = {1, 30, 3};
  EXPECT_THROW(conv_backward_data(other, o.y, o.w, o.dx), Error);
  EXPECT_THROW(conv_backward_weights(c, o.x, o.y, o.dw, 0.5), Error);
  const Operands half = operands(c, DType::f16, DType::f16);
  EXPECT_THROW(conv_forward(c, {.x = o.x, .w = half.w, .bias = Tensor(), .y = o.y}), Error);
}

TEST(Conv, LedgerCountsOperandsAndTwoOperationsAMultiplyAdd) {
  const Conv c = conv2d(2, 8, 8, 4, 6, 3, 1, 1);
  const Operands o = operands(c, DType::f32, DType::f32);
  ledger::Recorder recorder;
  conv_forward(c, {.x = o.x, .w = o.w, .bias = o.bias, .y = o.y});
  EXPECT_EQ(recorder.sum().flops, c.flops());
  EXPECT_EQ(recorder.sum().bytes(),
            double(o.x.bytes() + o.w.bytes() + o.bias.bytes() + o.y.bytes()));
}

// ---- the library's choice over the model zoo ---------------------------------------------------

struct Layer {
  std::string model;
  Conv conv;
  bool input = false;  // of the network: its dX is never wanted
};

void add_basic_stage(std::vector<Layer>& all, const std::string& model, i64 n, i64 size, i64 in,
                     i64 width, i64 stride) {
  all.push_back({model, conv2d(n, size, size, in, width, 3, stride, 1)});
  all.push_back({model, conv2d(n, size / stride, size / stride, width, width, 3, 1, 1)});
  if (stride != 1 || in != width) {
    all.push_back({model, conv2d(n, size, size, in, width, 1, stride, 0)});
  }
}

void add_bottleneck_stage(std::vector<Layer>& all, const std::string& model, i64 n, i64 size,
                          i64 in, i64 width, i64 stride) {
  all.push_back({model, conv2d(n, size, size, in, width, 1, 1, 0)});
  all.push_back({model, conv2d(n, size, size, width, width, 3, stride, 1)});
  all.push_back({model, conv2d(n, size / stride, size / stride, width, 4 * width, 1, 1, 0)});
  all.push_back({model, conv2d(n, size, size, in, 4 * width, 1, stride, 0)});
  all.push_back({model, conv2d(n, size / stride, size / stride, 4 * width, width, 1, 1, 0)});
  all.push_back({model, conv2d(n, size / stride, size / stride, width, width, 3, 1, 1)});
}

std::vector<Layer> zoo(i64 n) {
  std::vector<Layer> all;
  for (const bool cifar : {true, false}) {
    const std::string stem = cifar ? "CIFAR" : "ImageNet";
    const i64 size = cifar ? 32 : 56;
    all.push_back({"ResNet " + stem,
                   cifar ? conv2d(n, 32, 32, 3, 64, 3, 1, 1) : conv2d(n, 224, 224, 3, 64, 7, 2, 3),
                   true});
    for (i64 stage = 0; stage < 4; ++stage) {
      const i64 width = i64(64) << stage;
      const i64 stride = stage == 0 ? 1 : 2;
      const i64 at = stage == 0 ? size : size >> (stage - 1);
      add_basic_stage(all, "ResNet-18/34 " + stem, n, at, stage == 0 ? 64 : width / 2, width,
                      stride);
      add_bottleneck_stage(all, "ResNet-50/101 " + stem, n, at, stage == 0 ? 64 : 2 * width, width,
                           stride);
    }
  }
  all.push_back({"CNN", conv2d(n, 28, 28, 1, 32, 3, 1, 1), true});
  all.push_back({"CNN", conv2d(n, 28, 28, 32, 64, 3, 1, 1)});
  all.push_back({"CNN", conv2d(n, 14, 14, 32, 64, 3, 1, 1)});
  all.push_back({"CNN", conv2d(n, 14, 14, 64, 64, 3, 1, 1)});
  for (const i64 channels : {1, 3}) {
    all.push_back({"3-D net", conv3d(n, 16, 16, 16, channels, 16, 3, 1, 1), true});
  }
  all.push_back({"3-D net", conv3d(n, 8, 8, 8, 16, 32, 3, 1, 1)});
  all.push_back({"3-D net", conv3d(n, 8, 8, 8, 32, 64, 3, 2, 1)});
  for (const auto& [size, patch, width] :
       {std::array<i64, 3>{224, 16, 192}, {224, 16, 768}, {32, 4, 192}, {28, 7, 64}}) {
    all.push_back({"ViT", conv2d(n, size, size, size == 28 ? 1 : 3, width, patch, patch, 0), true});
  }
  return all;
}

TEST(Conv, NoLayerOfTheModelsFallsToReferenceCode) {
  if (onednn() == nullptr) {
    GTEST_SKIP() << "built without oneDNN";
  }
  std::set<std::string> seen;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (dtype == DType::bf16 && !cpu_bf16_usable()) {
      continue;
    }
    for (const i64 n : {1, 7, 64}) {
      for (const Layer& l : zoo(n)) {
        const auto names = conv_implementations(l.conv, dtype, kCpu);
        for (std::size_t pass = 0; pass < 3; ++pass) {
          if (pass == 1 && l.input) {
            continue;
          }
          seen.insert(names[pass]);
          EXPECT_TRUE(names[pass] != "naive" && names[pass].find("ref") == std::string::npos)
              << l.model << ", " << name_of(dtype) << ", batch " << n << ", pass " << pass << ": "
              << l.conv.channels << " to " << l.conv.filters << ", kernel " << l.conv.kernel[1]
              << ": " << names[pass];
        }
      }
    }
  }
  EXPECT_GE(seen.size(), 3u);
}

TEST(Conv, F64RunsOnPlainKernels) {
  const auto names = conv_implementations(conv2d(1, 8, 8, 4, 4, 3, 1, 1), DType::f64, kCpu);
  for (const std::string& name : names) {
    EXPECT_EQ(name, "naive");
  }
}

}  // namespace
}  // namespace penstock::kernels
