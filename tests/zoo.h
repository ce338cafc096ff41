// Every model at a size that a test can afford, with the fields that its data set would have.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "framework/core/random.h"
#include "trainers/step.h"

namespace penstock::zoo {

struct Entry {
  std::string name;
  models::ModelOptions model;
  std::vector<data::Field> fields;
};

inline void PrintTo(const Entry& e, std::ostream* to) { *to << e.name; }

inline std::vector<Entry> entries() {
  std::vector<Entry> all;
  const auto image = [&](const std::string& name, const Shape& shape, models::ModelOptions o) {
    o.name = name;
    o.input = shape;
    all.push_back({name, o, {{"image", DType::u8, shape}, {"label", DType::i64, {}}}});
  };
  image("mlp", {12, 12, 1}, {.hidden = {32, 24}});
  image("cnn", {12, 12, 1}, {});
  image("resnet18", {16, 16, 3}, {});
  image("resnet50", {32, 32, 3}, {.stem = "imagenet"});
  image("vit", {16, 16, 3}, {.layers = 2, .heads = 2, .width = 32, .dropout = 0.1});
  image("conv3d", {8, 8, 8, 1}, {});
  for (const bool recompute : {false, true}) {
    all.push_back({recompute ? "gpt recomputed" : "gpt",
                   {.name = "gpt",
                    .input = {16},
                    .layers = 2,
                    .heads = 2,
                    .width = 32,
                    .vocabulary = 64,
                    .dropout = 0.1,
                    .recompute_blocks = recompute},
                   {{"input", DType::i32, {16}}, {"target", DType::i32, {16}}}});
  }
  for (const bool recompute : {false, true}) {
    all.push_back({recompute ? "bert recomputed" : "bert",
                   {.name = "bert",
                    .input = {16},
                    .layers = 2,
                    .heads = 2,
                    .width = 32,
                    .vocabulary = 64,
                    .dropout = recompute ? 0.1 : 0.0,
                    .recompute_blocks = recompute},
                   {{"input", DType::i32, {16}},
                    {"target", DType::i32, {16}},
                    {"length", DType::i32, {}}}});
  }
  return all;
}

// Host memory of `count` samples that make sense to the entry's model.
struct Samples {
  std::vector<std::vector<std::byte>> fields;
  trainers::HostBatch batch;

  Samples(const Entry& e, i64 count) {
    random::Generator g(5, random::Stream::kSynthetic, 0, 0);
    for (const data::Field& f : e.fields) {
      std::vector<std::byte> bytes(std::size_t(count * f.bytes()));
      const i64 values = count * f.shape.numel();
      for (i64 i = 0; i < values; ++i) {
        if (f.dtype == DType::u8) {
          bytes[std::size_t(i)] = std::byte(g.below(256));
        } else if (f.dtype == DType::i64) {
          reinterpret_cast<std::int64_t*>(bytes.data())[i] = g.below(std::uint32_t(e.model.classes));
        } else {
          reinterpret_cast<std::int32_t*>(bytes.data())[i] =
              f.name == "length" ? std::int32_t(e.model.input[0] / 2 + i64(g.below(4)))
                                 : std::int32_t(g.below(std::uint32_t(e.model.vocabulary)));
        }
      }
      fields.push_back(std::move(bytes));
    }
    batch.count = count;
    for (const auto& f : fields) {
      batch.fields.push_back({{f.data(), count}});
    }
  }
};

}  // namespace penstock::zoo
