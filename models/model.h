// What every model is to the trainer: batches in, a loss out, and weights under public names.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/io/safetensors_weights.h"
#include "framework/nn/layers.h"
#include "framework/ops/loss.h"

namespace penstock::models {

struct ModelOptions {
  std::string name = "mlp";  // one of model_names()
  Shape input;               // of one sample: [H, W, C], [D, H, W, C] or [T]
  i64 classes = 10;
  std::vector<i64> hidden = {512, 512};  // mlp
  i64 layers = 6;                        // gpt, bert, vit
  i64 heads = 6;
  i64 width = 384;
  i64 vocabulary = 256;
  i64 context = 0;  // longest sequence; 0: that of the input
  i64 patch = 4;    // vit: pixels
  double dropout = 0;
  std::string stem = "auto";  // resnet: cifar (3x3), imagenet (7x7 and pooling), auto by image size
  bool recompute_blocks = false;  // gpt, bert, vit
  float label_smoothing = 0;
  // Of image channels scaled to [0, 1].
  std::array<float, 4> mean = {0.5F, 0.5F, 0.5F, 0.5F};
  std::array<float, 4> deviation = {0.5F, 0.5F, 0.5F, 0.5F};
};

// Device tensors of one micro-batch.
struct Batch {
  Tensor input;                      // u8 or f32 [N, ...], or i32 [N, T]
  Tensor target;                     // i64 or i32, one per row of logits
  Tensor lengths;                    // i32 [N]: tokens that are no padding; undefined: all
  Tensor second_target, row_weight;  // mixup
};

class Model : public nn::Module {
 public:
  explicit Model(ModelOptions options) : options_(std::move(options)) {}

  // Logits, one row per target.
  virtual Tensor forward(const Batch& batch) = 0;
  // Softmax cross-entropy over the rows.
  ops::LossResult loss(const Batch& batch, ops::Reduction reduction);
  // Rows of logits per sample.
  virtual i64 targets_per_sample() const { return 1; }
  // Does a single sample have no batch statistics?
  virtual bool uses_batch_norm() const { return false; }
  // Every parameter and buffer as public files have it: torchvision's names for resnet, Hugging
  // Face's for gpt and bert, our own module names elsewhere.
  virtual std::vector<io::NamedTensor> public_tensors();
  // Is this a tensor that public files of this architecture may carry and nobody needs: a batch
  // counter, a causal mask, the second copy of a tied weight? For io::LoadOptions::ignorable.
  virtual bool ignorable(std::string_view name) const;
  const ModelOptions& options() const { return options_; }

 protected:
  // Images as the layer of `weight` wants them, normalised.
  Tensor pixels(const Batch& batch, const Tensor& weight) const;

 private:
  ModelOptions options_;
};

// The names that build_model() knows.
const std::vector<std::string>& model_names();
// Throws ConfigError for an unknown name (with the nearest one) and for options that do not fit
// each other.
std::unique_ptr<Model> build_model(const ModelOptions& options);

}  // namespace penstock::models
