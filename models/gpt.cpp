// GPT-2 (Radford et al. 2019): pre-norm decoder with a tied head, under Hugging Face's names.
#include <cmath>
#include <deque>

#include "framework/autograd/amp.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/shape_ops.h"
#include "models/builders.h"

namespace penstock::models {
namespace {

using Init = nn::Init;

nn::Linear::Options linear(i64 in, i64 out, float deviation) {
  return {.in = in, .out = out, .init = Init::normal(deviation), .usual_init = false};
}

class Attention final : public nn::Module {
 public:
  Attention(const ModelOptions& o, float residual_deviation, std::uint32_t layer)
      : heads_(o.heads),
        c_attn_(linear(o.width, 3 * o.width, 0.02F)),
        c_proj_(linear(o.width, o.width, residual_deviation)),
        dropout_(o.dropout, layer) {
    child("c_attn", c_attn_);
    child("c_proj", c_proj_);
    child("dropout", dropout_);
  }
  Tensor operator()(const Tensor& x) const {  // [N, T, C]
    return dropout_(c_proj_(ops::attention(c_attn_(x), {.heads = heads_, .causal = true})));
  }

 private:
  i64 heads_;
  nn::Linear c_attn_, c_proj_;
  nn::Dropout dropout_;
};

class FeedForward final : public nn::Module {
 public:
  FeedForward(const ModelOptions& o, float residual_deviation, std::uint32_t layer)
      : c_fc_(linear(o.width, 4 * o.width, 0.02F)),
        c_proj_(linear(4 * o.width, o.width, residual_deviation)),
        dropout_(o.dropout, layer) {
    child("c_fc", c_fc_);
    child("c_proj", c_proj_);
    child("dropout", dropout_);
  }
  Tensor operator()(const Tensor& x) const {
    return dropout_(c_proj_(c_fc_(x, ops::Activation::kGelu)));
  }

 private:
  nn::Linear c_fc_, c_proj_;
  nn::Dropout dropout_;
};

class Block final : public nn::Module {
 public:
  Block(const ModelOptions& o, std::uint32_t index)
      : ln_1(o.width),
        ln_2(o.width),
        attn(o, 0.02F / std::sqrt(2.0F * float(o.layers)), 2 * index + 1),
        mlp(o, 0.02F / std::sqrt(2.0F * float(o.layers)), 2 * index + 2) {
    child("ln_1", ln_1);
    child("attn", attn);
    child("ln_2", ln_2);
    child("mlp", mlp);
  }
  // The whole block on the residual stream: what is run again under recomputation.
  Tensor operator()(const Tensor& x) const {
    const ops::ResidualNorm r = ln_2(attn(ln_1(x)), x);
    return ops::add(mlp(r.norm), r.sum);
  }
  nn::LayerNorm ln_1, ln_2;
  Attention attn;
  FeedForward mlp;
};

class Gpt final : public Model {
 public:
  explicit Gpt(const ModelOptions& o)
      : Model(o),
        wte_(o.vocabulary, o.width, Init::normal(0.02F)),
        wpe_(o.context > 0 ? o.context : o.input[0], o.width, Init::normal(0.02F)),
        dropout_(o.dropout, 0),
        ln_f_(o.width) {
    child("wte", wte_);
    child("wpe", wpe_);
    child("drop", dropout_);
    for (i64 i = 0; i < o.layers; ++i) {
      blocks_.emplace_back(o, std::uint32_t(i));
      child("h." + std::to_string(i), blocks_.back());
    }
    child("ln_f", ln_f_);
  }

  Tensor forward(const Batch& batch) override {
    const Tensor& ids = batch.input;  // [N, T]
    const i64 time = ids.dim(1);
    const Tensor positions = ops::slice(wpe_.weight, 0, 0, time);  // [T, C]
    Tensor x = dropout_(ops::add(wte_(ids), positions));           // [N, T, C]
    x = amp::cast(x, stream_dtype(wte_.weight));
    Tensor norm;
    if (options().recompute_blocks) {
      for (const Block& block : blocks_) {
        x = nn::recompute([&block](const Tensor& stream) { return block(stream); }, x);
      }
      norm = ln_f_(x);
    } else {
      norm = blocks_.empty() ? ln_f_(x) : blocks_.front().ln_1(x);
      // Each norm takes the branch before it into the stream: one pass for add and norm.
      for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const Block& block = blocks_[i];
        const ops::ResidualNorm middle = block.ln_2(block.attn(norm), x);
        const nn::LayerNorm& next = i + 1 < blocks_.size() ? blocks_[i + 1].ln_1 : ln_f_;
        const ops::ResidualNorm end = next(block.mlp(middle.norm), middle.sum);
        x = end.sum;
        norm = end.norm;
      }
    }
    norm = ops::reshape(norm, {-1, options().width});  // [N T, C]
    return ops::linear(norm, wte_.weight, Tensor());   // [N T, V]
  }
  i64 targets_per_sample() const override { return options().input[0]; }

  std::vector<io::NamedTensor> public_tensors() override {
    // GPT-2's files keep the weights of its linear layers as [in, out].
    std::vector<io::NamedTensor> all = Model::public_tensors();
    for (io::NamedTensor& t : all) {
      if (t.name.find(".c_") != std::string::npos && t.name.ends_with(".weight")) {
        t.layout = io::Layout::kTransposed;
      }
    }
    return all;
  }
  bool ignorable(std::string_view name) const override {
    // Causal masks, and the head where it is stored beside the embedding that it is.
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name == "lm_head.weight" || Model::ignorable(name);
  }

 private:
  nn::Embedding wte_, wpe_;
  nn::Dropout dropout_;
  std::deque<Block> blocks_;
  nn::LayerNorm ln_f_;
};

}  // namespace

std::unique_ptr<Model> make_gpt(const ModelOptions& options) {
  check_transformer(options);
  return std::make_unique<Gpt>(options);
}

}  // namespace penstock::models
