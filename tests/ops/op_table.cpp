#include "tests/ops/op_table.h"

#include "framework/ops/conv.h"
#include "framework/ops/linear.h"
#include "framework/ops/loss.h"
#include "framework/ops/norm.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/reduce.h"
#include "framework/ops/shape_ops.h"
#include "framework/ops/softmax.h"

namespace penstock::testing_ops {
namespace {

using namespace ops;
using In = std::vector<Tensor>;

// Odd sizes around vector and block widths; zero sizes in each position.
const std::vector<Shape> kShapes = {{1}, {7}, {17}, {3, 33}, {5, 1, 13}, {129}, {0}, {0, 4}, {4, 0}};

bool empty(const Shape& s) { return s.numel() == 0; }

class Table {
 public:
  std::vector<OpCase> rows;

  OpCase& add(OpCase row) {
    for (const Input& i : row.inputs) {
      row.zero_size = row.zero_size || empty(i.shape);
    }
    rows.push_back(std::move(row));
    return rows.back();
  }

  template <class F>
  void unary(const std::string& name, F f, double low = -2, double high = 2) {
    for (const Shape& s : kShapes) {
      add({.name = name, .inputs = {{.shape = s, .low = low, .high = high}},
           .call = [f](const In& x) { return f(x[0]); },
           .tolerance = 2});
    }
  }

  template <class F>
  void binary(const std::string& name, F f, double low = -2, double high = 2, double low_b = -2,
              double high_b = 2) {
    const std::vector<std::pair<Shape, Shape>> pairs = {
        {{7}, {7}},          {{3, 17}, {3, 17}}, {{}, {3}},        {{3}, {}},
        {{3, 5}, {5}},       {{3, 1}, {3, 5}},   {{2, 1, 3}, {4, 3}}, {{2, 4, 3}, {2, 1, 3}},
        {{33, 1}, {1, 17}},  {{0, 3}, {3}},      {{0}, {1}},       {{1, 3}, {0, 3}}};
    for (const auto& [a, b] : pairs) {
      add({.name = name,
           .inputs = {{.shape = a, .low = low, .high = high},
                      {.shape = b, .low = low_b, .high = high_b}},
           .call = [f](const In& x) { return f(x[0], x[1]); }});
    }
  }
};

void add_pointwise(Table& t) {
  t.unary("neg", neg);
  t.unary("exp", exp);
  t.unary("log", log, 0.2, 3);
  t.unary("sqrt", sqrt, 0.2, 3);
  t.unary("square", square);
  t.unary("tanh", tanh);
  t.unary("sigmoid", sigmoid);
  t.unary("relu", relu, 0.1, 2);
  t.unary("relu", [](const Tensor& x) { return relu(neg(x)); }, 0.1, 2);
  t.unary("gelu", gelu);
  t.unary("gelu_tanh", gelu_tanh);
  t.unary("silu", silu);
  t.unary("scale", [](const Tensor& x) { return scale(x, -1.75); });
  t.unary("add_scalar", [](const Tensor& x) { return add_scalar(x, 0.5); });
  t.unary("dropout", [](const Tensor& x) { return dropout(x, {.p = 0.4, .layer = 3}); });
  t.binary("add", [](const Tensor& a, const Tensor& b) { return add(a, b); });
  t.binary("sub", [](const Tensor& a, const Tensor& b) { return sub(a, b); });
  t.binary("mul", [](const Tensor& a, const Tensor& b) { return mul(a, b); });
  t.binary("div", [](const Tensor& a, const Tensor& b) { return div(a, b); }, -2, 2, 0.5, 2);
  t.binary("pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); }, 0.3, 2);
  t.binary("maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }, -2, 0, 0.1, 2);
  t.binary("minimum", [](const Tensor& a, const Tensor& b) { return minimum(a, b); }, -2, 0, 0.1, 2);
  for (const Shape& s : {Shape{7}, Shape{3, 17}, Shape{0, 3}}) {
    t.add({.name = "where",
           .inputs = {{.shape = s, .boolean = true, .differentiable = false}, {.shape = s}, {.shape = s}},
           .call = [](const In& x) { return where(x[0], x[1], x[2]); }});
  }
  t.add({.name = "where",
         .inputs = {{.shape = {3, 1}, .boolean = true, .differentiable = false}, {.shape = {5}}, {.shape = {}}},
         .call = [](const In& x) { return where(x[0], x[1], x[2]); },
         .tolerance = 2});
}

void add_reductions(Table& t) {
  for (const Shape& s : {Shape{7}, Shape{33, 5}, Shape{3, 1025}, Shape{4, 3, 5}, Shape{0, 3}, Shape{3, 0}}) {
    t.add({.name = "sum", .inputs = {{.shape = s}}, .call = [](const In& x) { return sum(x[0]); }});
    if (!empty(s)) {
      t.add({.name = "mean", .inputs = {{.shape = s}}, .call = [](const In& x) { return mean(x[0]); }});
    }
    for (int axis = 0; axis < s.rank(); ++axis) {
      t.add({.name = "sum", .inputs = {{.shape = s}},
             .call = [axis](const In& x) { return sum(x[0], {axis}, axis % 2 == 0); }});
      if (s[axis] > 0) {
        t.add({.name = "max", .inputs = {{.shape = s, .distinct = true}},
               .call = [axis](const In& x) { return max(x[0], axis); }});
      }
    }
  }
  t.add({.name = "sum", .inputs = {{.shape = {4, 3, 5}}},
         .call = [](const In& x) { return sum(x[0], {0, 2}); }});
  t.add({.name = "mean", .inputs = {{.shape = {4, 3, 5, 2}}},
         .call = [](const In& x) { return mean(x[0], {1, 2}, true); }});
  for (const Shape& s : {Shape{1, 1}, Shape{3, 7}, Shape{2, 3, 33}, Shape{2, 1025}, Shape{0, 5}, Shape{5, 0}}) {
    t.add({.name = "softmax", .inputs = {{.shape = s}}, .call = [](const In& x) { return softmax(x[0]); }});
    t.add({.name = "log_softmax", .inputs = {{.shape = s}},
           .call = [](const In& x) { return log_softmax(x[0]); }});
  }
}

void add_shape_ops(Table& t) {
  t.add({.name = "reshape", .inputs = {{.shape = {3, 8}}},
         .call = [](const In& x) { return reshape(x[0], {2, -1, 3}); }});
  for (const Shape& s : {Shape{3, 5, 7}, Shape{1, 33, 2}, Shape{0, 3, 2}}) {
    t.add({.name = "permute", .inputs = {{.shape = s}},
           .call = [](const In& x) { return permute(x[0], {2, 0, 1}); }});
    t.add({.name = "transpose", .inputs = {{.shape = s}},
           .call = [](const In& x) { return transpose(x[0], 0, -1); }});
    t.add({.name = "slice", .inputs = {{.shape = s}},
           .call = [](const In& x) { return slice(x[0], 1, 1, x[0].dim(1), 2); }});
    t.add({.name = "pad", .inputs = {{.shape = s}},
           .call = [](const In& x) { return pad(x[0], 1, 2, 1, 0.5); }});
  }
  t.add({.name = "expand", .inputs = {{.shape = {3, 1, 5}}},
         .call = [](const In& x) { return expand(x[0], {2, 3, 4, 5}); }});
  t.add({.name = "concat", .inputs = {{.shape = {2, 3}}, {.shape = {2, 0}}, {.shape = {2, 5}}},
         .call = [](const In& x) { return concat({x[0], x[1], x[2]}, 1); }});
  t.add({.name = "concat", .inputs = {{.shape = {2, 3}}, {.shape = {4, 3}}},
         .call = [](const In& x) { return concat({x[0], x[1]}, 0); }});
  for (const DType d : {DType::i64, DType::i32, DType::u8}) {
    t.add({.name = "embedding",
           .inputs = {{.shape = {11, 6}}, {.shape = {3, 5}, .index = true, .index_dtype = d, .classes = 11}},
           .call = [](const In& x) { return embedding(x[0], x[1]); }});
  }
  t.add({.name = "embedding",
         .inputs = {{.shape = {11, 6}}, {.shape = {0}, .index = true, .classes = 11}},
         .call = [](const In& x) { return embedding(x[0], x[1]); }});
}

void add_products(Table& t) {
  struct Case {
    Shape a, b;
    MatMul o;
  };
  for (const Case& c : std::vector<Case>{{{3, 5}, {5, 7}, {}},
                                         {{5, 3}, {5, 7}, {.transpose_a = true}},
                                         {{3, 5}, {7, 5}, {.transpose_b = true}},
                                         {{5, 3}, {7, 5}, {true, true}},
                                         {{2, 3, 5}, {2, 5, 7}, {}},
                                         {{2, 5, 3}, {2, 7, 5}, {true, true}},
                                         {{2, 3, 5}, {5, 7}, {}},
                                         {{2, 3, 5}, {7, 5}, {.transpose_b = true}},
                                         {{2, 5, 3}, {5, 7}, {.transpose_a = true}},
                                         {{2, 5, 3}, {7, 5}, {true, true}},
                                         {{17, 33}, {33, 9}, {}},
                                         {{2, 0}, {0, 4}, {}},
                                         {{0, 5}, {5, 7}, {}},
                                         {{3, 5}, {5, 0}, {}}}) {
    t.add({.name = "matmul", .inputs = {{.shape = c.a}, {.shape = c.b}},
           .call = [o = c.o](const In& x) { return matmul(x[0], x[1], o); }, .tolerance = 2});
  }
  for (const auto act : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
    for (const Shape& s : {Shape{5, 6}, Shape{2, 3, 6}, Shape{1, 6}, Shape{0, 6}}) {
      // Inputs in (0.1, 1) and weights of one sign keep the ReLU's argument off its kink.
      t.add({.name = "linear",
             .inputs = {{.shape = s, .low = 0.1, .high = 1}, {.shape = {9, 6}, .low = 0.1, .high = 1},
                        {.shape = {9}, .low = 0.1, .high = 1}},
             .call = [act](const In& x) { return linear(x[0], x[1], x[2], act); }, .tolerance = 2});
    }
  }
  t.add({.name = "linear", .inputs = {{.shape = {5, 6}}, {.shape = {9, 6}}},
         .call = [](const In& x) { return linear(x[0], x[1], Tensor()); }, .tolerance = 2});
}

void add_norms(Table& t) {
  for (const Shape& s : {Shape{3, 7}, Shape{2, 3, 33}, Shape{4, 3}, Shape{1, 1030}, Shape{0, 5}}) {
    const Shape c = {s[-1]};
    t.add({.name = "layer_norm",
           .inputs = {{.shape = s}, {.shape = c, .wide = true}, {.shape = c, .wide = true}},
           .call = [](const In& x) { return layer_norm(x[0], x[1], x[2], 1e-3); }, .tolerance = 4});
    t.add({.name = "rms_norm", .inputs = {{.shape = s}, {.shape = c, .wide = true}},
           .call = [](const In& x) { return rms_norm(x[0], x[1], 1e-3); }, .tolerance = 4});
    t.add({.name = "residual_layer_norm",
           .inputs = {{.shape = s}, {.shape = s}, {.shape = c, .wide = true}, {.shape = c, .wide = true}},
           .call = [](const In& x) {
             const ResidualNorm r = residual_layer_norm(x[0], x[1], x[2], x[3], 1e-3);
             return add(r.sum, r.norm);
           },
           .tolerance = 4});
  }
  for (const Shape& s : {Shape{3, 7}, Shape{2, 3, 3, 5}, Shape{65, 3}, Shape{4, 70}, Shape{0, 3}}) {
    const Shape c = {s[-1]};
    const std::vector<Input> inputs = {{.shape = s}, {.shape = c, .low = 0.5, .wide = true}, {.shape = c, .wide = true}};
    t.add({.name = "batch_norm", .inputs = inputs,
           .call = [](const In& x) { return batch_norm(x[0], x[1], x[2], {.epsilon = 1e-3}); },
           .tolerance = 4});
    std::vector<Input> more = inputs;
    more[2].low = 20;  // keeps the ReLU's argument off its kink
    more[2].high = 21;
    more.push_back({.shape = s});
    t.add({.name = "batch_norm", .inputs = more,
           .call = [](const In& x) {
             return batch_norm(x[0], x[1], x[2], {.epsilon = 1e-3, .relu = true, .residual = x[3]});
           },
           .tolerance = 8});
  }
}

void add_images(Table& t) {
  struct Case {
    Shape x, w;
    Conv2d o;
  };
  for (const Case& c : std::vector<Case>{{{2, 5, 5, 3}, {4, 3, 3, 3}, {.pad = 1}},
                                         {{1, 7, 6, 2}, {3, 3, 3, 2}, {.stride = 2, .pad = 1}},
                                         {{2, 5, 5, 4}, {6, 1, 1, 4}, {}},
                                         {{1, 7, 7, 2}, {2, 3, 3, 2}, {.pad = 2, .dilation = 2}},
                                         {{2, 4, 4, 6}, {4, 3, 3, 3}, {.pad = 1, .groups = 2}},
                                         {{1, 9, 9, 3}, {2, 7, 7, 3}, {.stride = 2, .pad = 3}},
                                         {{1, 4, 4, 4}, {4, 3, 3, 1}, {.pad = 1, .groups = 4}},
                                         {{0, 5, 5, 3}, {4, 3, 3, 3}, {.pad = 1}}}) {
    t.add({.name = "conv2d", .inputs = {{.shape = c.x}, {.shape = c.w}, {.shape = {c.w[0]}}},
           .call = [o = c.o](const In& x) { return conv2d(x[0], x[1], x[2], o); }, .tolerance = 3});
    t.add({.name = "conv2d", .inputs = {{.shape = c.x}, {.shape = c.w}},
           .call = [o = c.o](const In& x) { return conv2d(x[0], x[1], Tensor(), o); }, .tolerance = 3});
  }
  t.add({.name = "conv2d",
         .inputs = {{.shape = {2, 5, 5, 3}, .low = 0.1}, {.shape = {4, 3, 3, 3}, .low = 0.1}, {.shape = {4}, .low = 0.1}},
         .call = [](const In& x) { return conv2d(x[0], x[1], x[2], {.pad = 1, .relu = true}); },
         .tolerance = 3});
  t.add({.name = "conv3d", .inputs = {{.shape = {1, 3, 4, 5, 2}}, {.shape = {3, 3, 3, 3, 2}}, {.shape = {3}}},
         .call = [](const In& x) { return conv3d(x[0], x[1], x[2], {.pad = 1}); }, .tolerance = 3});
  t.add({.name = "conv3d", .inputs = {{.shape = {2, 4, 4, 4, 2}}, {.shape = {2, 2, 2, 2, 2}}},
         .call = [](const In& x) { return conv3d(x[0], x[1], Tensor(), {.stride = 2}); }, .tolerance = 3});
  for (const Shape& s : {Shape{2, 6, 6, 3}, Shape{1, 7, 5, 17}, Shape{0, 4, 4, 2}}) {
    for (const Pool2d& o : {Pool2d{}, Pool2d{.window = 3, .stride = 2, .pad = 1},
                            Pool2d{.window = 3, .stride = 1}, Pool2d{.window = 3, .stride = 3, .pad = 1, .count_padding = false}}) {
      t.add({.name = "max_pool2d", .inputs = {{.shape = s, .distinct = true}},
             .call = [o](const In& x) { return max_pool2d(x[0], o); }});
      t.add({.name = "avg_pool2d", .inputs = {{.shape = s}},
             .call = [o](const In& x) { return avg_pool2d(x[0], o); }});
    }
    for (const i64 out : {1, 2, 3}) {
      t.add({.name = "adaptive_avg_pool2d", .inputs = {{.shape = s}},
             .call = [out](const In& x) { return adaptive_avg_pool2d(x[0], out); }});
    }
    t.add({.name = "global_avg_pool", .inputs = {{.shape = s}},
           .call = [](const In& x) { return global_avg_pool(x[0]); }});
  }
}

void add_attention(Table& t) {
  for (const bool causal : {false, true}) {
    for (const i64 time : {1, 5, 17}) {
      t.add({.name = "attention", .inputs = {{.shape = {2, time, 24}}},
             .call = [causal](const In& x) { return attention(x[0], {.heads = 2, .causal = causal}); },
             .tolerance = 4});
    }
  }
  t.add({.name = "attention", .inputs = {{.shape = {3, 6, 24}}},
         .call = [](const In& x) {
           const Tensor lengths =
               Tensor::from(std::vector<std::int32_t>{6, 3, 1}, {3}, x[0].device());
           return attention(x[0], {.heads = 2, .lengths = lengths});
         },
         .tolerance = 4});
}

void add_losses(Table& t) {
  for (const Shape& s : {Shape{1, 3}, Shape{7, 10}, Shape{5, 33}, Shape{3, 1025}}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const Reduction r : {Reduction::kMean, Reduction::kSum, Reduction::kNone}) {
        t.add({.name = "cross_entropy",
               .inputs = {{.shape = s}, {.shape = {s[0]}, .index = true, .classes = s[1]}},
               .call = [smoothing, r](const In& x) {
                 return cross_entropy(x[0], x[1], {.label_smoothing = float(smoothing), .reduction = r}).loss;
               },
               .tolerance = 4});
      }
    }
  }
  t.add({.name = "cross_entropy",
         .inputs = {{.shape = {6, 5}}, {.shape = {6}, .index = true, .classes = 5},
                    {.shape = {6}, .index = true, .classes = 5}},
         .call = [](const In& x) {
           const Tensor weight = Tensor::from(std::vector<float>{0.3F, 1, 0, 0.5F, 0.9F, 0.2F}, {6}, x[0].device());
           const Tensor classes = Tensor::from(std::vector<float>{1, 2, 0.5F, 1, 3}, {5}, x[0].device());
           return cross_entropy(x[0], x[1], {.ignore_index = 2, .label_smoothing = 0.2F, .class_weights = classes,
                                             .second_target = x[2], .row_weight = weight}).loss;
         },
         .tolerance = 4});
  for (const Shape& s : {Shape{7}, Shape{3, 5}, Shape{0, 2}}) {
    for (const Reduction r : {Reduction::kSum, Reduction::kNone}) {
      t.add({.name = "mse", .inputs = {{.shape = s}, {.shape = s}},
             .call = [r](const In& x) { return mse(x[0], x[1], r); }, .tolerance = 2});
      t.add({.name = "bce_with_logits", .inputs = {{.shape = s}, {.shape = s, .low = 0, .high = 1, .differentiable = false}},
             .call = [r](const In& x) { return bce_with_logits(x[0], x[1], r); }, .tolerance = 2});
    }
  }
  t.add({.name = "mse", .inputs = {{.shape = {3, 5}}, {.shape = {3, 5}}},
         .call = [](const In& x) { return mse(x[0], x[1]); }, .tolerance = 2});
}

std::vector<OpCase> build() {
  Table t;
  add_pointwise(t);
  add_reductions(t);
  add_shape_ops(t);
  add_products(t);
  add_norms(t);
  add_images(t);
  add_attention(t);
  add_losses(t);
  return std::move(t.rows);
}

}  // namespace

const std::vector<OpCase>& op_table() {
  static const std::vector<OpCase> table = build();
  return table;
}

}  // namespace penstock::testing_ops
