// Weights in files: the public layout on disk whatever memory holds, strict loading, conversions.
#include "framework/io/safetensors_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "framework/core/device.h"
#include "tests/storage_helpers.h"

namespace penstock::io {
namespace {

constexpr std::array kEveryDType = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                    DType::i64, DType::i32, DType::u8,  DType::boolean};

// A tensor of small values, each element another one.
Tensor counting(const Shape& shape, DType dtype) {
  const Tensor t = Tensor::empty(shape, dtype, kCpu);
  std::vector<std::byte> bytes(std::size_t(t.bytes()));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte(dtype == DType::boolean ? i % 3 == 0 : (i * 7) % 120);
  }
  t.load_host(bytes.data());
  return t;
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> bytes(std::size_t(t.bytes()));
  t.store_host(bytes.data());
  return bytes;
}

std::vector<float> floats_of(const SafetensorsFile& file, std::string_view name) {
  const SafetensorsEntry* entry = file.find(name);
  std::vector<float> out(std::size_t(entry->shape.numel()));
  file.read(*entry, 0, i64(out.size()), DType::f32, out.data());
  return out;
}

TEST(SafetensorsWeights, EveryTypeAndLayoutComesBackBitForBit) {
  const TestFolder folder;
  for (const DType dtype : kEveryDType) {
    for (const auto& [shape, layout] :
         {std::pair{Shape{2, 3, 5}, Layout::kSame}, std::pair{Shape{}, Layout::kSame},
          std::pair{Shape{4, 3, 2, 5}, Layout::kChannelsLast},
          std::pair{Shape{4, 2, 3, 2, 5}, Layout::kChannelsLast},
          std::pair{Shape{7, 3}, Layout::kTransposed}, std::pair{Shape{3, 0}, Layout::kTransposed},
          std::pair{Shape{0, 3, 3, 4}, Layout::kChannelsLast}}) {
      SCOPED_TRACE(format("{} {} {}", dtype, shape, int(layout)));
      const Tensor saved = counting(shape, dtype);
      const std::vector<NamedTensor> out = {{.name = "x", .tensor = saved, .layout = layout}};
      save_weights(folder / "w.safetensors", out);
      const Tensor loaded = Tensor::zeros(shape, dtype, kCpu);
      const std::vector<NamedTensor> in = {{.name = "x", .tensor = loaded, .layout = layout}};
      const SafetensorsFile file(folder / "w.safetensors");
      const LoadReport report = load_weights(file, in);
      EXPECT_EQ(bytes_of(loaded), bytes_of(saved));
      EXPECT_EQ(report.loaded, 1);
      EXPECT_TRUE(report.converted.empty());
    }
  }
}

TEST(SafetensorsWeights, FilesHoldOihwWhateverMemoryHolds) {
  const TestFolder folder;
  const i64 k = 2, r = 2, s = 3, c = 4;
  std::vector<float> memory;  // [K, R, S, C]
  for (i64 a = 0; a < k; ++a) {
    for (i64 h = 0; h < r; ++h) {
      for (i64 w = 0; w < s; ++w) {
        for (i64 b = 0; b < c; ++b) {
          memory.push_back(float(1000 * a + 100 * b + 10 * h + w));
        }
      }
    }
  }
  const std::vector<NamedTensor> tensors = {{.name = "conv.weight",
                                             .tensor = Tensor::from(memory, {k, r, s, c}, kCpu),
                                             .layout = Layout::kChannelsLast}};
  save_weights(folder / "w.safetensors", tensors, {{"format", "pt"}});
  const SafetensorsFile file(folder / "w.safetensors");
  EXPECT_EQ(file.metadata("format"), "pt");
  EXPECT_EQ(file.find("conv.weight")->shape, (Shape{k, c, r, s}));
  std::vector<float> expected;  // [O, I, H, W]
  for (i64 o = 0; o < k; ++o) {
    for (i64 i = 0; i < c; ++i) {
      for (i64 h = 0; h < r; ++h) {
        for (i64 w = 0; w < s; ++w) {
          expected.push_back(float(1000 * o + 100 * i + 10 * h + w));
        }
      }
    }
  }
  EXPECT_EQ(floats_of(file, "conv.weight"), expected);
}

TEST(SafetensorsWeights, LinearWeightsOfGpt2AreStoredInputFirst) {
  const TestFolder folder;
  const std::vector<float> memory = {1, 2, 3, 4, 5, 6};  // [out 2, in 3]
  const std::vector<NamedTensor> tensors = {
      {.name = "w", .tensor = Tensor::from(memory, {2, 3}, kCpu), .layout = Layout::kTransposed}};
  save_weights(folder / "w.safetensors", tensors);
  const SafetensorsFile file(folder / "w.safetensors");
  EXPECT_EQ(file.find("w")->shape, (Shape{3, 2}));
  EXPECT_EQ(floats_of(file, "w"), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_THROW(file_shape({2, 3, 4}, Layout::kTransposed), Error);
  EXPECT_THROW(file_shape({2, 3}, Layout::kChannelsLast), Error);
}

TEST(SafetensorsWeights, TensorsAreAlignedByTheirElements) {
  const TestFolder folder;
  std::vector<NamedTensor> tensors;
  for (const DType dtype : kEveryDType) {
    tensors.push_back(
        {.name = std::string("odd.") + name_of(dtype), .tensor = counting({3}, dtype)});
  }
  std::reverse(tensors.begin(), tensors.end());
  save_weights(folder / "w.safetensors", tensors);
  const SafetensorsFile file(folder / "w.safetensors");
  for (const SafetensorsEntry& e : file.entries()) {
    EXPECT_EQ(e.offset % size_of(e.type), 0) << e.name;
  }
  std::vector<NamedTensor> loaded;
  for (const NamedTensor& t : tensors) {
    loaded.push_back({.name = t.name, .tensor = Tensor::zeros({3}, t.tensor.dtype(), kCpu)});
  }
  load_weights(file, loaded);
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    EXPECT_EQ(bytes_of(loaded[i].tensor), bytes_of(tensors[i].tensor)) << loaded[i].name;
  }
}

// ---- strict loading

struct Model {
  Tensor a = counting({10, 4}, DType::f32);
  Tensor b = counting({10}, DType::f32);
  std::vector<NamedTensor> tensors(const std::string& prefix = "") const {
    return {{.name = prefix + "fc.weight", .tensor = a}, {.name = prefix + "fc.bias", .tensor = b}};
  }
};

TEST(SafetensorsWeights, ARefusedFileChangesNothingAndEveryDifferenceIsListed) {
  const TestFolder folder;
  const Model model;
  const std::vector<NamedTensor> other = {
      {.name = "fc.weight", .tensor = counting({11, 4}, DType::f32)},
      {.name = "fc.gain", .tensor = counting({10}, DType::f32)}};
  save_weights(folder / "w.safetensors", other);
  const SafetensorsFile file(folder / "w.safetensors");
  const auto before = bytes_of(model.a);
  const std::string text = message_of<DataError>([&] { load_weights(file, model.tensors()); });
  for (const char* part : {"missing (1)", "fc.bias", "unexpected (1)", "fc.gain", "mismatched (1)",
                           "fc.weight: expected f32 [10, 4], found F32 [11, 4]", "0 of 2"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_EQ(bytes_of(model.a), before);
  const LoadReport report = load_weights(file, model.tensors(), {.partial = true});
  EXPECT_EQ(report.loaded, 0);
  EXPECT_EQ(report.wanted, 2);
  EXPECT_NE(report.text().find("0 of 2 tensors loaded"), std::string::npos) << report.text();
}

TEST(SafetensorsWeights, NothingIsBroadcast) {
  const TestFolder folder;
  const std::vector<NamedTensor> small = {
      {.name = "w", .tensor = counting({1, 64, 1, 1}, DType::f32)}};
  save_weights(folder / "w.safetensors", small);
  const SafetensorsFile file(folder / "w.safetensors");
  for (const Shape& shape : {Shape{32, 64, 1, 1}, Shape{64}, Shape{1, 64}, Shape{64, 1, 1, 1}}) {
    const std::vector<NamedTensor> wanted = {
        {.name = "w", .tensor = Tensor::zeros(shape, DType::f32, kCpu)}};
    EXPECT_THROW(load_weights(file, wanted), DataError) << shape.numel();
  }
}

TEST(SafetensorsWeights, APrefixIsSuggestedAndStripped) {
  const TestFolder folder;
  const Model saved;
  save_weights(folder / "w.safetensors", saved.tensors("module."));
  const SafetensorsFile file(folder / "w.safetensors");
  const Model model;
  model.a.fill_zero();
  model.b.fill_zero();
  const std::string text = message_of<DataError>([&] { load_weights(file, model.tensors()); });
  EXPECT_NE(text.find("begin with \"module.\""), std::string::npos) << text;
  const LoadReport report = load_weights(file, model.tensors(), {.strip_prefix = "module."});
  EXPECT_NE(report.text().find("2 of 2 tensors loaded"), std::string::npos) << report.text();
  EXPECT_EQ(bytes_of(model.a), bytes_of(saved.a));
}

TEST(SafetensorsWeights, WhatNobodyNeedsMayBeIgnored) {
  const TestFolder folder;
  const Model model;
  std::vector<NamedTensor> all = model.tensors();
  all.push_back({.name = "attn.bias", .tensor = counting({4}, DType::u8)});
  save_weights(folder / "w.safetensors", all);
  const SafetensorsFile file(folder / "w.safetensors");
  EXPECT_THROW(load_weights(file, model.tensors()), DataError);
  const auto mask = [](std::string_view name) { return name.ends_with("attn.bias"); };
  EXPECT_EQ(load_weights(file, model.tensors(), {.ignorable = mask}).loaded, 2);
}

TEST(SafetensorsWeights, HostileNamesAreEscapedInMessages) {
  const TestFolder folder;
  const std::vector<NamedTensor> odd = {
      {.name = "\x1b[31m<script>\n", .tensor = counting({1}, DType::f32)}};
  save_weights(folder / "w.safetensors", odd);
  const Model model;
  const std::string text = message_of<DataError>(
      [&] { load_weights(SafetensorsFile(folder / "w.safetensors"), model.tensors()); });
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("\\x1b[31m<script>\\x0a"), std::string::npos) << text;
}

// ---- conversions

TEST(SafetensorsWeights, FloatsConvertCountedAndOthersDoNot) {
  const TestFolder folder;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.0f, -2.5f, 1e5f, inf, 1e-8f, std::nanf("")};
  const std::vector<NamedTensor> saved = {{.name = "w", .tensor = Tensor::from(values, {6}, kCpu)}};
  save_weights(folder / "w.safetensors", saved);
  const SafetensorsFile file(folder / "w.safetensors");
  const Tensor half = Tensor::zeros({6}, DType::f16, kCpu);
  const std::vector<NamedTensor> wanted = {{.name = "w", .tensor = half}};
  EXPECT_THROW(load_weights(file, wanted, {.convert = false}), DataError);
  const LoadReport report = load_weights(file, wanted);
  EXPECT_EQ(report.converted.at("F32 to f16"), 1);
  EXPECT_EQ(report.overflowed, 1);  // 1e5; the infinity was one before
  const f16* h = half.data<f16>();
  EXPECT_EQ(float(h[0]), 1.0f);
  EXPECT_EQ(float(h[1]), -2.5f);
  EXPECT_EQ(float(h[2]), inf);
  EXPECT_EQ(float(h[3]), inf);
  EXPECT_TRUE(std::isnan(float(h[5])));
  for (const DType dtype : {DType::i32, DType::i64, DType::u8, DType::boolean}) {
    const std::vector<NamedTensor> whole = {
        {.name = "w", .tensor = Tensor::zeros({6}, dtype, kCpu)}};
    EXPECT_THROW(load_weights(file, whole), DataError);
  }
  // Large enough for several pieces.
  std::vector<double> many(40'000);
  std::iota(many.begin(), many.end(), 0.0);
  const std::vector<NamedTensor> wide = {
      {.name = "w", .tensor = Tensor::from(many, {40'000}, kCpu)}};
  save_weights(folder / "wide.safetensors", wide);
  const auto narrow = floats_of(SafetensorsFile(folder / "wide.safetensors"), "w");
  for (std::size_t i = 0; i < many.size(); ++i) {
    ASSERT_EQ(narrow[i], float(i));
  }
}

TEST(SafetensorsWeights, ATruthValueOfTwoIsRefused) {
  const TestFolder folder;
  const std::string header = "{\"t\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]}}";
  std::string file(8, '\0');
  file[0] = char(header.size());
  put_file(folder / "w.safetensors", file + header + "\1\2");
  const std::vector<NamedTensor> wanted = {
      {.name = "t", .tensor = Tensor::zeros({2}, DType::boolean, kCpu)}};
  EXPECT_THROW(load_weights(SafetensorsFile(folder / "w.safetensors"), wanted), DataError);
}

// ---- writing

TEST(SafetensorsWeights, AWriterThatIsGivenTooMuchOrTooLittleSaysSo) {
  const TestFolder folder;
  const std::vector<SafetensorsHeaderItem> items = {
      {.name = "a", .dtype = DType::f32, .shape = {2}}};
  std::vector<std::byte> bytes(16);
  OutputFile out(folder / "w");
  SafetensorsWriter writer(out, items);
  EXPECT_THROW(writer.append(bytes), Error);
  writer.append(std::span(bytes).first(4));
  EXPECT_THROW(writer.finish(), Error);
  writer.append(std::span(bytes).first(4));
  writer.finish();
  EXPECT_EQ(out.bytes(), writer.file_bytes());
}

TEST(SafetensorsWeights, NamesThatNoReaderTakesAreNotWritten) {
  const TestFolder folder;
  const auto write = [&](std::vector<std::string> names, Metadata metadata = {}) {
    std::vector<SafetensorsHeaderItem> items;
    for (const std::string& name : names) {
      items.push_back({.name = name, .dtype = DType::u8, .shape = {}});
    }
    OutputFile out(folder / "w");
    const SafetensorsWriter writer(out, items, metadata);
  };
  EXPECT_NO_THROW(write({"a", "b"}));
  EXPECT_THROW(write({"a", "a"}), Error);
  EXPECT_THROW(write({""}), Error);
  EXPECT_THROW(write({"__metadata__"}), Error);
  EXPECT_THROW(write({"\xff"}), Error);
  EXPECT_THROW(write({std::string("a\0b", 3)}), Error);
  EXPECT_THROW(write({std::string(2000, 'n')}), Error);
  EXPECT_THROW(write({"a"}, {{"k", "1"}, {"k", "2"}}), Error);
  EXPECT_THROW(write({"a"}, {{"k", "\xff"}}), Error);
}

TEST(SafetensorsWeights, AFailedSaveKeepsTheOldFile) {
  const TestFolder folder;
  const Model model;
  save_weights(folder / "w.safetensors", model.tensors());
  const std::string before = contents_of(folder / "w.safetensors");
  std::vector<NamedTensor> twice = model.tensors();
  twice.push_back(twice.front());
  EXPECT_THROW(save_weights(folder / "w.safetensors", twice), Error);
  EXPECT_EQ(contents_of(folder / "w.safetensors"), before);
  EXPECT_EQ(list_folder(folder.path()).size(), 1u);
}

}  // namespace
}  // namespace penstock::io
