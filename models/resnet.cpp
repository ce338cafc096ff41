// Residual networks (He et al. 2015), with torchvision's module names; the stride of a bottleneck
// is in its 3x3 convolution, as torchvision has it.
#include <deque>
#include <optional>

#include "models/builders.h"

namespace penstock::models {
namespace {

// Two 3x3 convolutions, or 1x1, 3x3, 1x1; each with its norm, and the shortcut added before the
// last ReLU.
class Block final : public nn::Module {
 public:
  struct Options {
    i64 in = 0;
    i64 width = 0;
    i64 stride = 1;
    bool bottleneck = false;
    i64 out() const { return bottleneck ? 4 * width : width; }
  };
  explicit Block(const Options& o)
      : bottleneck_(o.bottleneck),
        conv1_(o.bottleneck ? nn::Conv2d::Options{.in = o.in, .out = o.width, .kernel = 1}
                            : nn::Conv2d::Options{.in = o.in,
                                                  .out = o.width,
                                                  .kernel = 3,
                                                  .stride = o.stride,
                                                  .pad = 1}),
        bn1_(o.width),
        conv2_({.in = o.width,
                .out = o.width,
                .kernel = 3,
                .stride = o.bottleneck ? o.stride : 1,
                .pad = 1}),
        bn2_(o.width) {
    child("conv1", conv1_);
    child("bn1", bn1_);
    child("conv2", conv2_);
    child("bn2", bn2_);
    if (o.bottleneck) {
      conv3_.emplace(nn::Conv2d::Options{.in = o.width, .out = o.out(), .kernel = 1});
      bn3_.emplace(o.out());
      child("conv3", *conv3_);
      child("bn3", *bn3_);
    }
    if (o.stride != 1 || o.in != o.out()) {
      shortcut_.emplace(
          nn::Conv2d::Options{.in = o.in, .out = o.out(), .kernel = 1, .stride = o.stride});
      shortcut_norm_.emplace(o.out());
      child("downsample.0", *shortcut_);
      child("downsample.1", *shortcut_norm_);
    }
  }

  Tensor operator()(const Tensor& x) const {
    const Tensor residual = shortcut_ ? (*shortcut_norm_)((*shortcut_)(x)) : x;
    const Tensor h = bn1_(conv1_(x), true);
    if (!bottleneck_) {
      return bn2_(conv2_(h), true, residual);
    }
    return (*bn3_)((*conv3_)(bn2_(conv2_(h), true)), true, residual);
  }

 private:
  bool bottleneck_;
  nn::Conv2d conv1_;
  nn::BatchNorm bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm bn2_;
  std::optional<nn::Conv2d> conv3_, shortcut_;
  std::optional<nn::BatchNorm> bn3_, shortcut_norm_;
};

class ResNet final : public Model {
 public:
  ResNet(const ModelOptions& o, bool small_stem, const std::array<int, 4>& depths, bool bottleneck)
      : Model(o),
        small_stem_(small_stem),
        conv1_(small_stem ? nn::Conv2d::Options{.in = o.input[2], .out = 64, .kernel = 3, .pad = 1}
                          : nn::Conv2d::Options{.in = o.input[2],
                                                .out = 64,
                                                .kernel = 7,
                                                .stride = 2,
                                                .pad = 3}),
        bn1_(64),
        fc_({.in = bottleneck ? 2048 : 512, .out = o.classes}) {
    child("conv1", conv1_);
    child("bn1", bn1_);
    i64 in = 64;
    for (std::size_t stage = 0; stage < 4; ++stage) {
      for (int i = 0; i < depths[stage]; ++i) {
        const Block::Options block{.in = in,
                                   .width = i64{64} << stage,
                                   .stride = stage > 0 && i == 0 ? 2 : 1,
                                   .bottleneck = bottleneck};
        blocks_.emplace_back(block);
        child("layer" + std::to_string(stage + 1) + "." + std::to_string(i), blocks_.back());
        in = block.out();
      }
    }
    child("fc", fc_);
  }

  Tensor forward(const Batch& batch) override {
    Tensor x = bn1_(conv1_(pixels(batch, conv1_.weight)), true);
    if (!small_stem_) {
      x = ops::max_pool2d(x, {.window = 3, .stride = 2, .pad = 1});
    }
    for (const Block& block : blocks_) {
      x = block(x);
    }
    return fc_(ops::global_avg_pool(x));  // [N, classes]
  }
  bool uses_batch_norm() const override { return true; }

 private:
  bool small_stem_;
  nn::Conv2d conv1_;
  nn::BatchNorm bn1_;
  std::deque<Block> blocks_;
  nn::Linear fc_;
};

}  // namespace

std::unique_ptr<Model> make_resnet(const ModelOptions& o) {
  expect_input_rank(o, 3, "images [H, W, C]");
  bool small = o.input[0] < 96;
  if (o.stem == "cifar" || o.stem == "imagenet") {
    small = o.stem == "cifar";
  } else if (o.stem != "auto") {
    throw ConfigError(format("model.stem: {}; expected auto, cifar or imagenet", o.stem));
  }
  const std::array<int, 4> depths = o.name == "resnet18"    ? std::array<int, 4>{2, 2, 2, 2}
                                    : o.name == "resnet101" ? std::array<int, 4>{3, 4, 23, 3}
                                                            : std::array<int, 4>{3, 4, 6, 3};
  return std::make_unique<ResNet>(o, small, depths, o.name == "resnet50" || o.name == "resnet101");
}

}  // namespace penstock::models
