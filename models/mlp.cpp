// Fully connected layers with ReLU, over flattened samples.
#include <deque>

#include "framework/ops/shape_ops.h"
#include "models/builders.h"

namespace penstock::models {
namespace {

class Mlp final : public Model {
 public:
  explicit Mlp(const ModelOptions& o) : Model(o) {
    i64 width = o.input.numel();
    for (const i64 h : o.hidden) {
      layers_.emplace_back(nn::Linear::Options{.in = width, .out = h});
      width = h;
    }
    layers_.emplace_back(nn::Linear::Options{.in = width, .out = o.classes});
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      child("fc" + std::to_string(i + 1), layers_[i]);
      dropouts_.emplace_back(o.dropout, std::uint32_t(i));
      child("dropout" + std::to_string(i + 1), dropouts_.back());
    }
  }

  Tensor forward(const Batch& batch) override {
    Tensor x = pixels(batch, layers_.front().weight);          // [N, ...]
    x = ops::reshape(x, {x.dim(0), options().input.numel()});  // [N, D]
    for (std::size_t i = 0; i + 1 < layers_.size(); ++i) {
      x = dropouts_[i](layers_[i](x, ops::Activation::kRelu));
    }
    return layers_.back()(x);  // [N, classes]
  }

 private:
  std::deque<nn::Linear> layers_;
  std::deque<nn::Dropout> dropouts_;
};

}  // namespace

std::unique_ptr<Model> make_mlp(const ModelOptions& options) {
  for (const i64 h : options.hidden) {
    if (h < 1) {
      throw ConfigError(format("model.hidden: {}; expected widths of at least 1", h));
    }
  }
  if (options.input.rank() < 2) {
    throw ConfigError(
        format("model.name: mlp takes images or volumes; the data set gives {}", options.input));
  }
  return std::make_unique<Mlp>(options);
}

}  // namespace penstock::models
