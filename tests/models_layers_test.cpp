// What models are made of: sizes and names that the public has, initial values, evaluation mode,
// and which kernels their convolutions get.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/kernels/dnn.h"
#include "framework/kernels/onednn.h"
#include "framework/nn/arena.h"
#include "framework/ops/image_input.h"
#include "models/model.h"

namespace penstock {
namespace {

using models::ModelOptions;

ModelOptions resnet(const std::string& name) {
  return {.name = name, .input = {224, 224, 3}, .classes = 1000};
}
ModelOptions gpt2() {
  return {
      .name = "gpt", .input = {1024}, .layers = 12, .heads = 12, .width = 768, .vocabulary = 50257};
}
ModelOptions bert_base() {
  return {
      .name = "bert", .input = {512}, .layers = 12, .heads = 12, .width = 768, .vocabulary = 30522};
}

// The numbers that the papers' public implementations report.
TEST(Architecture, HasThePublicNumberOfParameters) {
  const auto count = [](const ModelOptions& o) {
    return models::build_model(o)->parameter_count();
  };
  EXPECT_EQ(count(resnet("resnet18")), 11'689'512);
  EXPECT_EQ(count(resnet("resnet34")), 21'797'672);
  EXPECT_EQ(count(resnet("resnet50")), 25'557'032);
  EXPECT_EQ(count(resnet("resnet101")), 44'549'160);
  EXPECT_EQ(count(gpt2()), 124'439'808);
  EXPECT_EQ(count(bert_base()), 109'514'298);
  EXPECT_EQ(count({.name = "vit",
                   .input = {224, 224, 3},
                   .classes = 1000,
                   .layers = 12,
                   .heads = 12,
                   .width = 768,
                   .patch = 16}),
            86'567'656);
}

TEST(Architecture, PublicNamesAndShapes) {
  const auto shapes = [](const ModelOptions& o) {
    const auto model = models::build_model(o);
    const nn::ParameterArena arena(*model, {.device = meta_of(kCpu), .gradients = false});
    std::map<std::string, Shape> all;
    for (const io::NamedTensor& t : model->public_tensors()) {
      EXPECT_TRUE(all.emplace(t.name, io::file_shape(t.tensor.shape(), t.layout)).second) << t.name;
    }
    return all;
  };
  auto r = shapes(resnet("resnet50"));
  EXPECT_EQ(r.size(), 161U + 106U);
  EXPECT_EQ(r.at("conv1.weight"), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(r.at("layer2.0.downsample.0.weight"), (Shape{512, 256, 1, 1}));
  EXPECT_EQ(r.at("layer4.2.bn3.running_var"), (Shape{2048}));
  EXPECT_EQ(r.at("fc.weight"), (Shape{1000, 2048}));
  EXPECT_EQ(shapes(resnet("resnet18")).size(), 62U + 40U);
  r = shapes(gpt2());
  EXPECT_EQ(r.size(), 148U);
  EXPECT_EQ(r.at("wte.weight"), (Shape{50257, 768}));
  EXPECT_EQ(r.at("h.11.attn.c_attn.weight"), (Shape{768, 2304}));
  EXPECT_EQ(r.at("h.0.mlp.c_proj.weight"), (Shape{3072, 768}));
  EXPECT_EQ(r.at("h.0.mlp.c_proj.bias"), (Shape{768}));
  r = shapes(bert_base());
  EXPECT_EQ(r.at("bert.encoder.layer.3.attention.self.key.weight"), (Shape{768, 768}));
  EXPECT_EQ(r.at("cls.predictions.bias"), (Shape{30522}));
}

TEST(Architecture, StemFollowsTheImageSize) {
  const auto first = [](ModelOptions o) {
    Shape shape;
    models::build_model(o)->visit_parameters([&](const std::string& name, nn::Parameter& p) {
      shape = name == "conv1.weight" ? p.shape : shape;
    });
    return shape[1];
  };
  EXPECT_EQ(first({.name = "resnet18", .input = {32, 32, 3}}), 3);
  EXPECT_EQ(first({.name = "resnet18", .input = {224, 224, 3}}), 7);
  EXPECT_EQ(first({.name = "resnet18", .input = {32, 32, 3}, .stem = "imagenet"}), 7);
}

TEST(Architecture, OptionsThatDoNotFitAreRefusedByTheirKey) {
  const auto message = [](const ModelOptions& o) {
    try {
      (void)models::build_model(o);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message({.name = "resnet19", .input = {8, 8, 3}}), "did you mean resnet1"));
  EXPECT_TRUE(has(message({.name = "GPT2", .input = {8}}), "did you mean"));
  EXPECT_TRUE(has(message({.name = "gpt", .input = {8}, .heads = 5, .width = 32}), "model.width"));
  EXPECT_TRUE(has(message({.name = "gpt", .input = {8, 8, 1}}), "[8, 8, 1]"));
  EXPECT_TRUE(has(message({.name = "gpt", .input = {64}, .context = 32}), "model.context"));
  EXPECT_TRUE(has(message({.name = "vit", .input = {30, 30, 3}, .patch = 4}), "model.patch"));
  EXPECT_TRUE(has(message({.name = "conv3d", .input = {8, 8, 3}}), "[8, 8, 3]"));
  EXPECT_TRUE(has(message({.name = "mlp", .input = {8, 8, 3}, .hidden = {0}}), "model.hidden"));
  EXPECT_TRUE(has(message({.name = "mlp", .input = {8, 8, 3}, .dropout = 1}), "model.dropout"));
  EXPECT_TRUE(has(message({.name = "resnet18", .input = {8, 8, 3}, .stem = "x"}), "model.stem"));
  EXPECT_TRUE(has(message({.name = "cnn", .input = {8, 8, 3}, .recompute_blocks = true}),
                  "model.recompute"));
}

TEST(Files, WhatNobodyNeedsIsIgnoredAndNothingElse) {
  const auto r = models::build_model(resnet("resnet18"));
  EXPECT_TRUE(r->ignorable("bn1.num_batches_tracked"));
  EXPECT_FALSE(r->ignorable("bn1.running_mean"));
  const auto g = models::build_model(
      {.name = "gpt", .input = {8}, .layers = 1, .heads = 2, .width = 8, .vocabulary = 16});
  EXPECT_TRUE(g->ignorable("h.0.attn.bias"));
  EXPECT_TRUE(g->ignorable("lm_head.weight"));
  EXPECT_FALSE(g->ignorable("h.0.attn.c_attn.bias"));
  const auto b = models::build_model(
      {.name = "bert", .input = {8}, .layers = 1, .heads = 2, .width = 8, .vocabulary = 16});
  EXPECT_TRUE(b->ignorable("cls.predictions.decoder.weight"));
  EXPECT_FALSE(b->ignorable("cls.predictions.bias"));
  // What is ignored is nothing that the model itself has.
  for (models::Model* m : {r.get(), g.get(), b.get()}) {
    const nn::ParameterArena arena(*m, {.device = meta_of(kCpu), .gradients = false});
    for (const io::NamedTensor& t : m->public_tensors()) {
      EXPECT_FALSE(m->ignorable(t.name)) << t.name;
    }
  }
}

TEST(Files, WeightsComeBackAsTheyWere) {
  const std::string path =
      (std::filesystem::temp_directory_path() / format("penstock_models_{}.safetensors", getpid()))
          .string();
  for (const ModelOptions& o :
       {ModelOptions{
            .name = "bert", .input = {8}, .layers = 1, .heads = 2, .width = 8, .vocabulary = 16},
        ModelOptions{
            .name = "gpt", .input = {8}, .layers = 1, .heads = 2, .width = 8, .vocabulary = 16},
        ModelOptions{.name = "conv3d", .input = {8, 8, 8, 1}}}) {
    const auto from = models::build_model(o);
    const nn::ParameterArena source(*from, {.device = kCpu, .seed = 1, .gradients = false});
    io::save_weights(path, from->public_tensors());
    const auto to = models::build_model(o);
    const nn::ParameterArena target(*to, {.device = kCpu, .seed = 2, .gradients = false});
    EXPECT_NE(target.masters().values<float>(), source.masters().values<float>());
    const io::LoadReport report = io::load_weights(io::SafetensorsFile(path), to->public_tensors());
    EXPECT_EQ(report.loaded, report.wanted);
    EXPECT_EQ(target.masters().values<float>(), source.masters().values<float>()) << o.name;
  }
  std::filesystem::remove(path);
}

// ---- initial values
// ------------------------------------------------------------------------------

struct Spread {
  double largest = 0;
  double deviation = 0;
};

std::map<std::string, Spread> initial(const ModelOptions& o, std::uint64_t seed = 3) {
  const auto model = models::build_model(o);
  const nn::ParameterArena arena(*model, {.device = kCpu, .seed = seed, .gradients = false});
  std::map<std::string, Spread> all;
  for (const auto& e : arena.entries()) {
    Spread s;
    double sum = 0;
    for (const float v : e.parameter->value.values<float>()) {
      s.largest = std::max(s.largest, double(std::fabs(v)));
      sum += double(v) * double(v);
    }
    s.deviation = std::sqrt(sum / double(e.parameter->shape.numel()));
    all[e.name] = s;
  }
  return all;
}

TEST(Initial, ValuesHaveTheUsualSpread) {
  auto mlp = initial({.name = "mlp", .input = {28, 28, 1}, .hidden = {256}});
  // Uniform in +-1/sqrt(fan in).
  EXPECT_LE(mlp["fc1.weight"].largest, 1.0 / 28);
  EXPECT_GE(mlp["fc1.weight"].largest, 0.99 / 28);
  EXPECT_NEAR(mlp["fc1.weight"].deviation, 1 / (28 * std::sqrt(3.0)), 2e-4);
  EXPECT_LE(mlp["fc2.bias"].largest, 1.0 / 16);
  EXPECT_GT(mlp["fc2.bias"].largest, 0);
  // Normal with variance 2 / (taps x filters).
  auto r = initial({.name = "resnet18", .input = {32, 32, 3}});
  EXPECT_NEAR(r["layer2.1.conv1.weight"].deviation, std::sqrt(2.0 / (9 * 128)), 4e-4);
  EXPECT_EQ(r["bn1.weight"].deviation, 1);
  EXPECT_EQ(r["bn1.bias"].largest, 0);
  auto g = initial(
      {.name = "gpt", .input = {64}, .layers = 8, .heads = 4, .width = 128, .vocabulary = 256});
  EXPECT_NEAR(g["wte.weight"].deviation, 0.02, 5e-4);
  EXPECT_NEAR(g["h.3.attn.c_attn.weight"].deviation, 0.02, 5e-4);
  EXPECT_NEAR(g["h.3.mlp.c_proj.weight"].deviation, 0.02 / 4, 2e-4);  // / sqrt(2 layers)
  EXPECT_EQ(g["h.3.mlp.c_proj.bias"].largest, 0);
}

// A run with one layer more starts like the one without it, wherever both have the same parameter.
TEST(Initial, ValuesFollowSeedAndNameOnly) {
  const auto shallow = initial({.name = "mlp", .input = {8, 8, 1}, .hidden = {32}});
  const auto deep = initial({.name = "mlp", .input = {8, 8, 1}, .hidden = {32, 32}});
  const auto other = initial({.name = "mlp", .input = {8, 8, 1}, .hidden = {32}}, 4);
  EXPECT_EQ(shallow.at("fc1.weight").deviation, deep.at("fc1.weight").deviation);
  EXPECT_NE(shallow.at("fc1.weight").deviation, other.at("fc1.weight").deviation);
  EXPECT_NE(deep.at("fc1.weight").largest, deep.at("fc2.weight").largest);
}

TEST(Initial, WeightDecayIsForMatricesOnly) {
  const auto model = models::build_model({.name = "cnn", .input = {28, 28, 1}});
  model->visit_parameters([](const std::string& name, nn::Parameter& p) {
    EXPECT_EQ(p.decay, p.shape.rank() > 1) << name;
  });
}

// ---- modes
// ---------------------------------------------------------------------------------------

// In evaluation a sample's result does not depend on what else is in the batch, and drops nothing.
TEST(Evaluation, RowsAreIndependentAndRepeatable) {
  for (const std::string name : {"cnn", "vit", "mlp"}) {
    const auto model = models::build_model({.name = name,
                                            .input = {16, 16, 1},
                                            .hidden = {16},
                                            .layers = 1,
                                            .heads = 2,
                                            .width = 16,
                                            .dropout = 0.5});
    const nn::ParameterArena arena(*model, {.device = kCpu, .seed = 2, .gradients = false});
    std::vector<std::uint8_t> pixels(4 * 256);
    for (std::size_t i = 0; i < pixels.size(); ++i) {
      pixels[i] = std::uint8_t(i * 37 % 251);
    }
    const Tensor x = Tensor::from(pixels, {4, 16, 16, 1}, kCpu);
    model->set_training(false);
    const NoGrad no_grad;
    const std::vector<float> all = model->forward({.input = x}).values<float>();
    EXPECT_EQ(model->forward({.input = x}).values<float>(), all);
    const std::vector<float> one = model->forward({.input = x.rows(2, 3)}).values<float>();
    for (std::size_t c = 0; c < 10; ++c) {
      EXPECT_NEAR(one[c], all[20 + c], 1e-5) << name;
    }
    model->set_training(true);
    EXPECT_NE(model->forward({.input = x}).values<float>(), all) << name;
  }
}

// ---- images
// --------------------------------------------------------------------------------------

TEST(ImageInput, NormalisesBytesAndFloatsByChannel) {
  const ops::ImageInput o{.mean = {0.5F, 0.25F, 0, 0}, .deviation = {0.5F, 1, 2, 1}};
  const Tensor bytes =
      Tensor::from(std::vector<std::uint8_t>{0, 255, 51, 255, 0, 102}, {1, 2, 3}, kCpu);
  const std::vector<float> expected = {-1, 0.75F, 0.1F, 1, -0.25F, 0.2F};
  const auto expect_near = [&](const Tensor& y, double tolerance) {
    ASSERT_EQ(y.shape(), (Shape{1, 2, 3}));
    const std::vector<float> v = y.values<float>();
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(v[i], expected[i], tolerance);
    }
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    ops::ImageInput typed = o;
    typed.dtype = dtype;
    const Tensor y = ops::image_input(bytes, typed);
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_FALSE(y.needs_grad());
    expect_near(y, is_half(dtype) ? 8e-3 : 1e-6);
  }
  // Floats are in [0, 1] already.
  const Tensor floats = Tensor::from(std::vector<float>{0, 1, 0.2F, 1, 0, 0.4F}, {1, 2, 3}, kCpu);
  expect_near(ops::image_input(floats, o), 1e-6);
}

TEST(ImageInput, IsOneKernelThatDeclaresItsBytes) {
  const Tensor x = Tensor::zeros({2, 5, 7, 3}, DType::u8, kCpu);
  const ledger::Recorder recorder;
  (void)ops::image_input(x, {.dtype = DType::bf16});
  EXPECT_EQ(recorder.sum().kernels, 1);
  EXPECT_EQ(recorder.sum().bytes(), 210 * (1 + 2));
}

TEST(ImageInput, RefusesWhatIsNoImage) {
  EXPECT_THROW((void)ops::image_input(Tensor::zeros({2, 3}, DType::i32, kCpu), {}), Error);
  EXPECT_THROW(
      (void)ops::image_input(Tensor::zeros({2, 3}, DType::u8, kCpu), {.deviation = {0, 1, 1, 1}}),
      Error);
}

// ---- kernels
// -------------------------------------------------------------------------------------

kernels::Conv conv(i64 channels, i64 filters, i64 size, i64 kernel, i64 stride, i64 pad) {
  return {.n = 8,
          .channels = channels,
          .filters = filters,
          .in = {1, size, size},
          .kernel = {1, kernel, kernel},
          .stride = {1, stride, stride},
          .pad = {0, pad, pad}};
}

// Every different convolution of a residual network, from the names and shapes of its weights.
std::vector<kernels::Conv> convolutions(const ModelOptions& o) {
  std::vector<kernels::Conv> all;
  const bool bottleneck = o.name == "resnet50" || o.name == "resnet101";
  const bool small = o.input[0] < 96;
  std::set<std::string> seen;
  models::build_model(o)->visit_parameters([&](const std::string& name, nn::Parameter& p) {
    if (p.shape.rank() != 4) {
      return;
    }
    if (name == "conv1.weight") {
      all.push_back(
          conv(p.shape[3], p.shape[0], o.input[0], p.shape[1], small ? 1 : 2, p.shape[1] / 2));
      return;
    }
    const i64 stage = name[5] - '1';  // "layerN.M.convK.weight"
    const bool first = name[7] == '0';
    const bool strided = stage > 0 && first &&
                         (name.find("downsample") != std::string::npos ||
                          name.find(bottleneck ? "conv2" : "conv1") != std::string::npos);
    const bool before =
        strided || (bottleneck && stage > 0 && first && name.find("conv1") != std::string::npos);
    const i64 size = (small ? o.input[0] : o.input[0] / 4) >> (before ? stage - 1 : stage);
    const kernels::Conv c =
        conv(p.shape[3], p.shape[0], size, p.shape[1], strided ? 2 : 1, p.shape[1] / 2);
    if (seen.insert(format("{} {} {} {} {}", c.channels, c.filters, size, p.shape[1], strided))
            .second) {
      all.push_back(c);
    }
  });
  return all;
}

// The library's reference code is thousands of times slower than the rest of it.
TEST(Convolutions, NoneOfTheZooFallsBackToReferenceCode) {
  if (kernels::onednn() == nullptr) {
    GTEST_SKIP() << kernels::onednn_status();
  }
  std::vector<kernels::Conv> all = {conv(1, 32, 28, 3, 1, 1), conv(32, 64, 14, 3, 1, 1),  // cnn
                                    conv(3, 192, 32, 4, 4, 0),
                                    conv(3, 192, 224, 16, 16, 0)};  // vit
  for (const auto& [channels, filters, size, stride] : std::vector<std::array<i64, 4>>{
           {1, 16, 16, 1}, {16, 32, 16, 2}, {32, 64, 8, 2}}) {  // conv3d
    all.push_back({.n = 8,
                   .channels = channels,
                   .filters = filters,
                   .in = {size, size, size},
                   .kernel = {3, 3, 3},
                   .stride = {stride, stride, stride},
                   .pad = {1, 1, 1}});
  }
  for (const std::string name : {"resnet18", "resnet50"}) {
    for (const Shape& input : {Shape{32, 32, 3}, Shape{28, 28, 1}, Shape{224, 224, 3}}) {
      const auto more = convolutions({.name = name, .input = input});
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  EXPECT_GT(all.size(), 60U);
  std::vector<DType> dtypes = {DType::f32};
  if (kernels::cpu_bf16_usable()) {
    dtypes.push_back(DType::bf16);
  }
  for (const kernels::Conv& c : all) {
    for (const DType dtype : dtypes) {
      for (const std::string& name : kernels::conv_implementations(c, dtype, kCpu)) {
        EXPECT_TRUE(!name.starts_with("ref") && name.find("naive") == std::string::npos &&
                    name.find("plain") == std::string::npos)
            << name << " for " << name_of(dtype) << " " << c.channels << " to " << c.filters
            << ", size " << c.in[2] << ", kernel " << c.kernel[2] << ", stride " << c.stride[2];
      }
    }
  }
}

}  // namespace
}  // namespace penstock
