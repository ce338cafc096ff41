// The public architectures against PyTorch: logits, loss, gradients and running statistics of one
// training step. tests/reference/make.py wrote the files; weights and inputs follow its rule.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "framework/autograd/autograd.h"
#include "framework/io/safetensors.h"
#include "framework/kernels/onednn.h"
#include "framework/nn/arena.h"
#include "models/model.h"

namespace penstock {
namespace {

constexpr i64 kSamples = 256;

// ---- make.py's rule
// ------------------------------------------------------------------------------

std::uint32_t hash(const std::string& text) {
  std::uint32_t h = 0x811C9DC5U;
  for (const char c : text) {
    h = (h ^ std::uint8_t(c)) * 0x01000193U;
  }
  return h;
}

std::uint32_t word(std::uint32_t start, i64 i) {
  std::uint32_t x = start + std::uint32_t(i);
  x ^= x >> 16;
  x *= 0x85EBCA6BU;
  x ^= x >> 13;
  x *= 0xC2B2AE35U;
  x ^= x >> 16;
  return x;
}

// A public tensor's values, in the file's order.
std::vector<double> values(const std::string& name, const Shape& shape) {
  double offset = 0;
  double scale = 1;
  double either_side = 0;  // added with the sign of the draw
  if (name.ends_with("running_var")) {
    offset = 1;
    scale = 0.5;
  } else if (name.ends_with("bn3.weight")) {
    offset = 0.25;
    scale = 0.0625;
  } else if (name.ends_with("bn3.bias")) {
    offset = 2;
    scale = 0.125;
  } else if (name.ends_with("downsample.1.bias")) {
    offset = 8;
    scale = 0.125;
  } else if (name.ends_with("bn1.bias") || name.ends_with("bn2.bias")) {
    either_side = 8;
    scale = 0.125;
  } else if (shape.rank() == 1) {
    offset = name.ends_with(".weight") ? 1 : 0;
    scale = name.ends_with(".weight") ? 0.25 : 0.125;
  } else {
    while (scale * scale * double(shape.numel() / shape[0]) > 1) {
      scale *= 0.5;
    }
  }
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  const std::uint32_t start = hash(name);
  for (std::size_t i = 0; i < v.size(); ++i) {
    const double unit = double(word(start, i64(i)) >> 8) * 0x1p-23 - 1.0;
    v[i] = offset + (unit < 0 ? -either_side : either_side) + scale * unit;
  }
  return v;
}

std::vector<double> picked(const std::string& name, const std::vector<double>& all) {
  if (i64(all.size()) <= kSamples) {
    return all;
  }
  std::vector<double> some;
  const std::uint32_t start = hash("sample:" + name);
  for (i64 i = 0; i < kSamples; ++i) {
    some.push_back(all[word(start, i) % all.size()]);
  }
  return some;
}

template <class T>
Tensor drawn(const std::string& name, const Shape& shape, std::uint32_t below) {
  std::vector<T> v(static_cast<std::size_t>(shape.numel()));
  const std::uint32_t start = hash(name);
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] = T(word(start, i64(i)) % below);
  }
  return Tensor::from(v, shape, kCpu);
}

// ---- our run
// -------------------------------------------------------------------------------------

void fill(const io::NamedTensor& t) {
  const std::vector<double> file = values(t.name, io::file_shape(t.tensor.shape(), t.layout));
  std::vector<double> memory(file.size());
  io::from_file_layout({.memory = t.tensor.shape(), .element_bytes = 8, .layout = t.layout},
                       file.data(), memory.data());
  if (t.tensor.dtype() == DType::f64) {
    t.tensor.load_host(memory.data());
  } else {
    const std::vector<float> narrow(memory.begin(), memory.end());
    t.tensor.load_host(narrow.data());
  }
}

std::vector<double> file_order(const Tensor& x, io::Layout layout) {
  const std::vector<double> memory = x.values<double>();
  std::vector<double> file(memory.size());
  io::to_file_layout({.memory = x.shape(), .element_bytes = 8, .layout = layout}, memory.data(),
                     file.data());
  return file;
}

using Results = std::map<std::string, std::vector<double>>;

Results run(const models::ModelOptions& options, const models::Batch& batch, DType dtype) {
  const std::unique_ptr<models::Model> model = models::build_model(options);
  nn::ParameterArena arena(*model, {.device = kCpu, .dtype = dtype});
  for (const io::NamedTensor& t : model->public_tensors()) {
    fill(t);
  }
  if (arena.buffers().defined()) {
    arena.buffer_shadows().copy_from(arena.buffers());
  }
  arena.refresh_low_precision();
  arena.begin_step();

  Results r;
  {
    const NoGrad no_grad;
    r["logits"] = model->forward(batch).values<double>();
    if (arena.buffers().defined()) {
      arena.buffer_shadows().copy_from(arena.buffers());
    }
  }
  const Tensor loss = model->loss(batch, ops::Reduction::kMean).loss;
  r["loss"] = loss.values<double>();
  backward(loss);
  const i64 width = size_of(dtype);
  for (const io::NamedTensor& t : model->public_tensors()) {
    if (t.name.find("running") != std::string::npos) {
      const i64 at =
          (static_cast<char*>(t.tensor.raw()) - static_cast<char*>(arena.buffers().raw())) / 4;
      r["buffer:" + t.name] =
          file_order(arena.buffer_shadows().part(at, t.tensor.shape()), t.layout);
      continue;
    }
    const i64 at =
        (static_cast<char*>(t.tensor.raw()) - static_cast<char*>(arena.masters().raw())) / width;
    r["grad:" + t.name] = file_order(arena.gradients().part(at, t.tensor.shape()), t.layout);
  }
  for (auto& [name, v] : r) {
    v = picked(name, v);
  }
  return r;
}

// ---- comparison
// ----------------------------------------------------------------------------------

struct Reference {
  Results exact;
  std::map<std::string, double> error;  // |f32 - f64| of PyTorch
};

Reference read(const std::string& name) {
  const io::SafetensorsFile file(std::string(PENSTOCK_REFERENCE) + "/" + name + ".safetensors");
  Reference r;
  for (const io::SafetensorsEntry& e : file.entries()) {
    std::vector<double> v(static_cast<std::size_t>(e.shape.numel()));
    file.read(e, 0, e.shape.numel(), DType::f64, v.data());
    if (e.name.starts_with("error:")) {
      r.error[e.name.substr(6)] = v[0];
    } else {
      r.exact[e.name] = std::move(v);
    }
  }
  return r;
}

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) {
    sum += x * x;
  }
  return std::sqrt(sum);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<double> d;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    d.push_back(a[i] - b[i]);
  }
  return norm(d);
}

struct Case {
  models::ModelOptions options;
  models::Batch batch;
};

void expect_same(const std::string& name, const Case& c) {
  const Reference reference = read(name);
  double largest = 0;  // a gradient that is zero in exact arithmetic is measured against this
  for (const auto& [key, v] : reference.exact) {
    largest = key.starts_with("grad:") ? std::max(largest, norm(v)) : largest;
  }

  const Results wide = run(c.options, c.batch, DType::f64);
  ASSERT_EQ(wide.size(), reference.exact.size());
  for (const auto& [key, exact] : reference.exact) {
    ASSERT_TRUE(wide.contains(key)) << key;
    // Running statistics are f32 in an f64 run as well.
    const double bound = key.starts_with("buffer:") ? 1e-6 : 1e-9;
    EXPECT_LE(distance(wide.at(key), exact), bound * norm(exact) + 1e-13 * largest) << key;
  }

  const Results single = run(c.options, c.batch, DType::f32);
  std::map<std::string, std::array<double, 2>> sums;  // by kind: ours and PyTorch's, squared
  for (const auto& [key, exact] : reference.exact) {
    const std::string kind = key.substr(0, key.find(':'));
    const double ours = distance(single.at(key), exact);
    const double theirs = reference.error.at(key);
    sums[kind][0] += ours * ours;
    sums[kind][1] += theirs * theirs;
    // Single tensors are short sums of rounding errors, some lucky: more room for each of them.
    EXPECT_LE(ours, 8 * theirs + 1e-6 * norm(exact) + 1e-7 * largest) << key;
  }
  // Our plain kernels, which stand in where oneDNN is missing, add up in longer chains.
  const double factor = kernels::onednn() != nullptr ? 2 : 3;
  for (const auto& [kind, sum] : sums) {
    // The loss is one number, on which PyTorch may be lucky: what its logits are off counts.
    const double theirs = std::sqrt(sums.at(kind == "loss" ? "logits" : kind)[1]);
    EXPECT_LE(std::sqrt(sum[0]), factor * theirs) << kind;
  }
}

TEST(Parity, GptIsGpt2) {
  expect_same(
      "gpt",
      {.options =
           {.name = "gpt", .input = {16}, .layers = 2, .heads = 2, .width = 32, .vocabulary = 64},
       .batch = {.input = drawn<std::int32_t>("input", {3, 16}, 64),
                 .target = drawn<std::int32_t>("target", {48}, 64)}});
}

TEST(Parity, BertIsBert) {
  const std::vector<std::int32_t> lengths = {16, 9, 1};
  std::vector<std::int32_t> target = drawn<std::int32_t>("target", {48}, 64).values<std::int32_t>();
  for (i64 i = 0; i < 48; ++i) {
    const bool counts = i % 2 == 0 && i % 16 < lengths[std::size_t(i / 16)];
    target[std::size_t(i)] = counts ? target[std::size_t(i)] : -100;
  }
  expect_same(
      "bert",
      {.options =
           {.name = "bert", .input = {16}, .layers = 2, .heads = 2, .width = 32, .vocabulary = 64},
       .batch = {.input = drawn<std::int32_t>("input", {3, 16}, 64),
                 .target = Tensor::from(target, {48}, kCpu),
                 .lengths = Tensor::from(lengths, {3}, kCpu)}});
}

TEST(Parity, ResNet50IsTorchvisions) {
  expect_same("resnet50",
              {.options = {.name = "resnet50", .input = {64, 64, 3}, .stem = "imagenet"},
               .batch = {.input = drawn<std::uint8_t>("input", {2, 64, 64, 3}, 256),
                         .target = drawn<std::int64_t>("target", {2}, 10)}});
}

}  // namespace
}  // namespace penstock
