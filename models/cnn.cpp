// A small convolutional network for images of about 28 to 64 pixels.
#include "framework/ops/shape_ops.h"
#include "models/builders.h"

namespace penstock::models {
namespace {

class Cnn final : public Model {
 public:
  explicit Cnn(const ModelOptions& o)
      : Model(o),
        conv1_({.in = o.input[2], .out = 32, .kernel = 3, .pad = 1}),
        bn1_(32),
        conv2_({.in = 32, .out = 64, .kernel = 3, .pad = 1}),
        bn2_(64),
        fc1_({.in = (o.input[0] / 4) * (o.input[1] / 4) * 64, .out = 128}),
        fc2_({.in = 128, .out = o.classes}),
        dropout_(o.dropout, 0) {
    child("conv1", conv1_);
    child("bn1", bn1_);
    child("conv2", conv2_);
    child("bn2", bn2_);
    child("fc1", fc1_);
    child("fc2", fc2_);
    child("dropout", dropout_);
  }

  Tensor forward(const Batch& batch) override {
    // Pooling comes before norm and ReLU, which then pass over a quarter of the memory.
    Tensor x = pixels(batch, conv1_.weight);     // [N, H, W, C]
    x = bn1_(ops::max_pool2d(conv1_(x)), true);  // [N, H/2, W/2, 32]
    x = bn2_(ops::max_pool2d(conv2_(x)), true);  // [N, H/4, W/4, 64]
    x = ops::reshape(x, {x.dim(0), -1});
    x = dropout_(fc1_(x, ops::Activation::kRelu));  // [N, 128]
    return fc2_(x);                                 // [N, classes]
  }
  bool uses_batch_norm() const override { return true; }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm bn2_;
  nn::Linear fc1_, fc2_;
  nn::Dropout dropout_;
};

}  // namespace

std::unique_ptr<Model> make_cnn(const ModelOptions& options) {
  expect_input_rank(options, 3, "images [H, W, C]");
  if (options.input[0] < 4 || options.input[1] < 4) {
    throw ConfigError(
        format("model.name: cnn needs images of at least 4 x 4 pixels; the data set gives {}",
               options.input));
  }
  return std::make_unique<Cnn>(options);
}

}  // namespace penstock::models
