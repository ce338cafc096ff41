// A vision transformer (Dosovitskiy et al. 2021): patches, a class token, pre-norm blocks.
#include <deque>

#include "framework/autograd/amp.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/shape_ops.h"
#include "models/builders.h"

namespace penstock::models {
namespace {

class Block final : public nn::Module {
 public:
  Block(const ModelOptions& o, std::uint32_t index)
      : heads_(o.heads),
        norm1_(o.width, 1e-6),
        qkv_({.in = o.width, .out = 3 * o.width}),
        proj_({.in = o.width, .out = o.width}),
        norm2_(o.width, 1e-6),
        fc1_({.in = o.width, .out = 4 * o.width}),
        fc2_({.in = 4 * o.width, .out = o.width}),
        dropout1_(o.dropout, 2 * index + 1),
        dropout2_(o.dropout, 2 * index + 2) {
    child("norm1", norm1_);
    child("attn.qkv", qkv_);
    child("attn.proj", proj_);
    child("norm2", norm2_);
    child("mlp.fc1", fc1_);
    child("mlp.fc2", fc2_);
    child("drop1", dropout1_);
    child("drop2", dropout2_);
  }
  Tensor operator()(const Tensor& x) const {  // [N, T, C]
    const Tensor a = proj_(ops::attention(qkv_(norm1_(x)), {.heads = heads_}));
    const ops::ResidualNorm r = norm2_(dropout1_(a), x);
    return ops::add(dropout2_(fc2_(fc1_(r.norm, ops::Activation::kGelu))), r.sum);
  }

 private:
  i64 heads_;
  nn::LayerNorm norm1_;
  nn::Linear qkv_, proj_;
  nn::LayerNorm norm2_;
  nn::Linear fc1_, fc2_;
  nn::Dropout dropout1_, dropout2_;
};

class Vit final : public Model {
 public:
  explicit Vit(const ModelOptions& o)
      : Model(o),
        patches_((o.input[0] / o.patch) * (o.input[1] / o.patch)),
        patch_embed_(
            {.in = o.input[2], .out = o.width, .kernel = o.patch, .stride = o.patch, .bias = true}),
        cls_token_(parameter("cls_token", {1, 1, o.width}, nn::Init::normal(0.02F), false)),
        pos_embed_(
            parameter("pos_embed", {1, patches_ + 1, o.width}, nn::Init::normal(0.02F), false)),
        dropout_(o.dropout, 0),
        norm_(o.width, 1e-6),
        head_({.in = o.width, .out = o.classes}) {
    child("patch_embed.proj", patch_embed_);
    child("pos_drop", dropout_);
    for (i64 i = 0; i < o.layers; ++i) {
      blocks_.emplace_back(o, std::uint32_t(i));
      child("blocks." + std::to_string(i), blocks_.back());
    }
    child("norm", norm_);
    child("head", head_);
  }

  Tensor forward(const Batch& batch) override {
    Tensor x = patch_embed_(pixels(batch, patch_embed_.weight));  // [N, H/p, W/p, C]
    const i64 n = x.dim(0);
    x = ops::reshape(x, {n, patches_, options().width});
    const Tensor cls = amp::cast(ops::expand(cls_token_, {n, 1, options().width}), x.dtype());
    x = ops::concat({cls, x}, 1);  // [N, T + 1, C]
    x = dropout_(ops::add(x, amp::cast(pos_embed_, x.dtype())));
    for (const Block& block : blocks_) {
      x = options().recompute_blocks
              ? nn::recompute([&block](const Tensor& stream) { return block(stream); }, x)
              : block(x);
    }
    x = ops::reshape(ops::slice(x, 1, 0, 1), {n, options().width});
    return head_(norm_(x));  // [N, classes]
  }

 private:
  i64 patches_;
  nn::Conv2d patch_embed_;
  nn::Parameter& cls_token_;
  nn::Parameter& pos_embed_;
  nn::Dropout dropout_;
  std::deque<Block> blocks_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

}  // namespace

std::unique_ptr<Model> make_vit(const ModelOptions& o) {
  expect_input_rank(o, 3, "images [H, W, C]");
  if (o.patch < 1 || o.input[0] % o.patch != 0 || o.input[1] % o.patch != 0) {
    throw ConfigError(format("model.patch: {}; expected a divisor of the image's {} x {}", o.patch,
                             o.input[0], o.input[1]));
  }
  if (o.heads < 1 || o.width % o.heads != 0) {
    throw ConfigError(format("model.width: {} with {} heads; expected a multiple of the heads",
                             o.width, o.heads));
  }
  return std::make_unique<Vit>(o);
}

}  // namespace penstock::models
