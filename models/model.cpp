#include "models/model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "framework/autograd/amp.h"
#include "framework/ops/image_input.h"
#include "framework/ops/shape_ops.h"
#include "models/builders.h"

namespace penstock::models {
namespace {

using Builder = std::unique_ptr<Model> (*)(const ModelOptions&);

const std::map<std::string, Builder>& builders() {
  static const std::map<std::string, Builder> all = {
      {"mlp", make_mlp},         {"cnn", make_cnn},         {"resnet18", make_resnet},
      {"resnet34", make_resnet}, {"resnet50", make_resnet}, {"resnet101", make_resnet},
      {"gpt", make_gpt},         {"bert", make_bert},       {"vit", make_vit},
      {"conv3d", make_conv3d}};
  return all;
}

// Insertions, deletions and replacements between two names.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

ops::LossResult Model::loss(const Batch& batch, ops::Reduction reduction) {
  return ops::cross_entropy(forward(batch), batch.target,
                            {.label_smoothing = training() ? options_.label_smoothing : 0.0F,
                             .second_target = training() ? batch.second_target : Tensor(),
                             .row_weight = training() ? batch.row_weight : Tensor(),
                             .reduction = reduction});
}

std::vector<io::NamedTensor> Model::public_tensors() {
  std::vector<io::NamedTensor> all;
  visit_parameters([&](const std::string& name, nn::Parameter& p) {
    // Convolutions are KRSC in memory and OIHW in files.
    all.push_back({.name = name,
                   .tensor = p.value,
                   .layout = p.shape.rank() >= 4 ? io::Layout::kChannelsLast : io::Layout::kSame});
  });
  visit_buffers([&](const std::string& name, nn::Buffer& b) {
    all.push_back({.name = name, .tensor = b.value});
  });
  return all;
}

bool Model::ignorable(std::string_view name) const {
  // Norms of ours count no batches.
  return name.ends_with("num_batches_tracked");
}

Tensor Model::pixels(const Batch& batch, const Tensor& weight) const {
  return ops::image_input(
      batch.input,
      {.mean = options_.mean, .deviation = options_.deviation, .dtype = stream_dtype(weight)});
}

DType stream_dtype(const Tensor& weight) {
  return weight.dtype() == DType::f64 ? DType::f64 : amp::compute_dtype();
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, builder] : builders()) {
      all.push_back(name);
    }
    return all;
  }();
  return names;
}

void expect_input_rank(const ModelOptions& o, int rank, const char* what) {
  if (o.input.rank() != rank) {
    throw ConfigError(
        format("model.name: {} takes {} per sample; the data set gives {}", o.name, what, o.input));
  }
}

void check_transformer(const ModelOptions& o) {
  expect_input_rank(o, 1, "token sequences [T]");
  if (o.layers < 0 || o.heads < 1 || o.width < 1 || o.width % o.heads != 0) {
    throw ConfigError(
        format("model.width: {} with {} heads and {} layers; expected a multiple of the heads",
               o.width, o.heads, o.layers));
  }
  if (o.vocabulary < 1) {
    throw ConfigError(format("model.vocabulary: {}; expected at least 1", o.vocabulary));
  }
  if (o.context > 0 && o.input[0] > o.context) {
    throw ConfigError(
        format("data.sequence: {} tokens do not fit model.context {}", o.input[0], o.context));
  }
}

std::unique_ptr<Model> build_model(const ModelOptions& options) {
  const auto it = builders().find(options.name);
  if (it == builders().end()) {
    std::string known;
    std::string nearest;
    for (const std::string& n : model_names()) {
      known += (known.empty() ? "" : ", ") + n;
      if (nearest.empty() || edits(n, options.name) < edits(nearest, options.name)) {
        nearest = n;
      }
    }
    throw ConfigError(format("model.name: no model is called \"{}\"; did you mean {}? Known: {}",
                             options.name, nearest, known));
  }
  if (options.dropout < 0 || options.dropout >= 1) {
    throw ConfigError(
        format("model.dropout: {}; expected a value from 0 to below 1", options.dropout));
  }
  if (options.recompute_blocks && options.name != "gpt" && options.name != "bert" &&
      options.name != "vit") {
    throw ConfigError(
        format("model.recompute: blocks is not available for {}: running a block again "
               "would count its batch statistics twice; expected none",
               options.name));
  }
  auto model = it->second(options);
  return model;
}

}  // namespace penstock::models
