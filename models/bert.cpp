// BERT (Devlin et al. 2019): post-norm encoder with a padding mask and a masked-LM head, under
// Hugging Face's names.
#include <deque>

#include "framework/autograd/amp.h"
#include "framework/ops/pointwise.h"
#include "framework/ops/shape_ops.h"
#include "models/builders.h"

namespace penstock::models {
namespace {

constexpr double kEpsilon = 1e-12;

nn::Linear::Options linear(i64 in, i64 out) {
  return {.in = in, .out = out, .init = nn::Init::normal(0.02F), .usual_init = false};
}

class Layer final : public nn::Module {
 public:
  Layer(const ModelOptions& o, std::uint32_t index)
      : heads_(o.heads),
        qkv_(linear(o.width, 3 * o.width)),
        attention_output_(linear(o.width, o.width)),
        attention_norm_(o.width, kEpsilon),
        intermediate_(linear(o.width, 4 * o.width)),
        output_(linear(4 * o.width, o.width)),
        output_norm_(o.width, kEpsilon),
        attention_dropout_(o.dropout, 2 * index + 1),
        output_dropout_(o.dropout, 2 * index + 2) {
    child("attention.self", qkv_);
    child("attention.output.dense", attention_output_);
    child("attention.output.LayerNorm", attention_norm_);
    child("intermediate.dense", intermediate_);
    child("output.dense", output_);
    child("output.LayerNorm", output_norm_);
    child("attention.output.dropout", attention_dropout_);
    child("output.dropout", output_dropout_);
  }
  Tensor operator()(const Tensor& x, const Tensor& lengths) const {
    const Tensor a = ops::attention(qkv_(x), {.heads = heads_, .lengths = lengths});
    const Tensor h = attention_norm_(attention_dropout_(attention_output_(a)), x).norm;
    return output_norm_(output_dropout_(output_(ops::gelu(intermediate_(h)))), h).norm;
  }

 private:
  i64 heads_;
  nn::Linear qkv_, attention_output_;
  nn::LayerNorm attention_norm_;
  nn::Linear intermediate_, output_;
  nn::LayerNorm output_norm_;
  nn::Dropout attention_dropout_, output_dropout_;
};

// The head's own bias stands beside the tied decoder weight.
class HeadBias final : public nn::Module {
 public:
  explicit HeadBias(i64 vocabulary)
      : bias(parameter("bias", {vocabulary}, nn::Init::zeros(), false)) {}
  nn::Parameter& bias;
};

class Bert final : public Model {
 public:
  explicit Bert(const ModelOptions& o)
      : Model(o),
        words_(o.vocabulary, o.width, nn::Init::normal(0.02F)),
        positions_(o.context > 0 ? o.context : o.input[0], o.width, nn::Init::normal(0.02F)),
        types_(2, o.width, nn::Init::normal(0.02F)),
        norm_(o.width, kEpsilon),
        dropout_(o.dropout, 0),
        transform_(linear(o.width, o.width)),
        transform_norm_(o.width, kEpsilon),
        head_(o.vocabulary) {
    child("bert.embeddings.word_embeddings", words_);
    child("bert.embeddings.position_embeddings", positions_);
    child("bert.embeddings.token_type_embeddings", types_);
    child("bert.embeddings.LayerNorm", norm_);
    child("bert.embeddings.dropout", dropout_);
    for (i64 i = 0; i < o.layers; ++i) {
      layers_.emplace_back(o, std::uint32_t(i));
      child("bert.encoder.layer." + std::to_string(i), layers_.back());
    }
    child("cls.predictions.transform.dense", transform_);
    child("cls.predictions.transform.LayerNorm", transform_norm_);
    child("cls.predictions", head_);
  }

  Tensor forward(const Batch& batch) override {
    const i64 time = batch.input.dim(1);
    // Everything is of the first segment.
    const Tensor where = ops::add(ops::slice(positions_.weight, 0, 0, time),
                                  ops::slice(types_.weight, 0, 0, 1));  // [T, C]
    Tensor x = ops::add(words_(batch.input), where);                    // [N, T, C]
    x = dropout_(norm_(amp::cast(x, stream_dtype(words_.weight))));
    for (const Layer& layer : layers_) {
      const Tensor lengths = batch.lengths;
      x = options().recompute_blocks
              ? nn::recompute(
                    [&layer, lengths](const Tensor& stream) { return layer(stream, lengths); }, x)
              : layer(x, lengths);
    }
    x = ops::reshape(x, {-1, options().width});
    x = transform_norm_(ops::gelu(transform_(x)));
    return ops::linear(x, words_.weight, head_.bias);  // [N T, V]
  }
  i64 targets_per_sample() const override { return options().input[0]; }

  std::vector<io::NamedTensor> public_tensors() override {
    std::vector<io::NamedTensor> all;
    for (io::NamedTensor& t : Model::public_tensors()) {
      const std::size_t at = t.name.find("attention.self.");
      if (at == std::string::npos) {
        all.push_back(std::move(t));
        continue;
      }
      // Query, key and value are one packed matrix here and three in files.
      const i64 width = options().width;
      const std::string prefix = t.name.substr(0, at + 15);
      const std::string suffix = t.name.substr(at + 15);
      for (int part = 0; part < 3; ++part) {
        const char* const names[] = {"query.", "key.", "value."};
        all.push_back({.name = prefix + names[part] + suffix,
                       .tensor = t.tensor.rows(part * width, (part + 1) * width),
                       .layout = t.layout});
      }
    }
    return all;
  }
  bool ignorable(std::string_view name) const override {
    // The decoder is the word embedding and the head's bias again; pooler and next-sentence head
    // have no part in masked-word training.
    return name.ends_with("position_ids") || name.starts_with("cls.predictions.decoder.") ||
           name.starts_with("bert.pooler.") || name.starts_with("cls.seq_relationship.") ||
           Model::ignorable(name);
  }

 private:
  nn::Embedding words_, positions_, types_;
  nn::LayerNorm norm_;
  nn::Dropout dropout_;
  std::deque<Layer> layers_;
  nn::Linear transform_;
  nn::LayerNorm transform_norm_;
  HeadBias head_;
};

}  // namespace

std::unique_ptr<Model> make_bert(const ModelOptions& options) {
  check_transformer(options);
  return std::make_unique<Bert>(options);
}

}  // namespace penstock::models
