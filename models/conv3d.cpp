// A small network over volumes [D, H, W, C].
#include "models/builders.h"

namespace penstock::models {
namespace {

class ConvNet3d final : public Model {
 public:
  explicit ConvNet3d(const ModelOptions& o)
      : Model(o),
        conv1_({.in = o.input[3], .out = 16, .kernel = 3, .pad = 1}),
        bn1_(16),
        conv2_({.in = 16, .out = 32, .kernel = 3, .stride = 2, .pad = 1}),
        bn2_(32),
        conv3_({.in = 32, .out = 64, .kernel = 3, .stride = 2, .pad = 1}),
        bn3_(64),
        fc_({.in = 64, .out = o.classes}) {
    child("conv1", conv1_);
    child("bn1", bn1_);
    child("conv2", conv2_);
    child("bn2", bn2_);
    child("conv3", conv3_);
    child("bn3", bn3_);
    child("fc", fc_);
  }

  Tensor forward(const Batch& batch) override {
    Tensor x = bn1_(conv1_(pixels(batch, conv1_.weight)), true);  // [N, D, H, W, 16]
    x = bn2_(conv2_(x), true);                                    // [N, D/2, H/2, W/2, 32]
    x = bn3_(conv3_(x), true);                                    // [N, D/4, H/4, W/4, 64]
    return fc_(ops::global_avg_pool(x));                          // [N, classes]
  }
  bool uses_batch_norm() const override { return true; }

 private:
  nn::Conv3d conv1_;
  nn::BatchNorm bn1_;
  nn::Conv3d conv2_;
  nn::BatchNorm bn2_;
  nn::Conv3d conv3_;
  nn::BatchNorm bn3_;
  nn::Linear fc_;
};

}  // namespace

std::unique_ptr<Model> make_conv3d(const ModelOptions& options) {
  expect_input_rank(options, 4, "volumes [D, H, W, C]");
  return std::make_unique<ConvNet3d>(options);
}

}  // namespace penstock::models
