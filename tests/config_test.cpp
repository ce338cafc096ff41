// The configuration: what it accepts, what it refuses and how, and that it survives writing and reading.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "framework/io/config.h"
#include "framework/io/json.h"
#include "framework/io/schema.h"

namespace penstock::io {
namespace {

const char* const kGood = "model:\n  name: mlp\ndata:\n  name: mnist\n";

std::string error_of(const std::string& text, const std::vector<std::string>& set = {}) {
  try {
    (void)parse_config(text, "c.yaml", set);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

// Every kind of damage ends in a ConfigError that says where.
TEST(Config, BrokenFilesAreRefusedWithTheirPlace) {
  struct Case {
    std::string text;
    std::string expected;  // part of the message
  };
  const std::string g = kGood;
  std::vector<Case> cases = {
      {"", "empty"},
      {"   \n# only a comment\n", "empty"},
      {"hello", "sections"},
      {"- a\n- b\n", "sections"},
      {"model: mlp\n", "c.yaml:1"},
      {"modle:\n  name: mlp\n", "model"},
      {g + "train:\n\tbatch: 3\n", "tab"},
      {g + "train:\n  bath: 3\n", "train.batch"},
      {g + "train:\n  batch: 010\n", "octal"},
      {g + "train:\n  batch: 0x10\n", "integer"},
      {g + "train:\n  batch: 3.5\n", "integer"},
      {g + "train:\n  batch: -1\n", "at least 1"},
      {g + "train:\n  batch: 0\n", "at least 1"},
      {g + "train:\n  batch: \"64\"\n", "quotes"},
      {g + "train:\n  batch: [1, 2]\n", "list"},
      {g + "train:\n  batch: {a: 1}\n", "train.batch"},
      {g + "train:\n  batch:\n", "nothing"},
      {g + "train:\n  batch: 1e400\n", "beyond"},
      {g + "train:\n  batch: nan\n", "integer"},
      {g + "train:\n  batch: yes\n", "integer"},
      {g + "train:\n  deterministic: yes\n", "true or false"},
      {g + "train:\n  deterministic: 1\n", "true or false"},
      {g + "train:\n  deterministic: True\n", "true or false"},
      {g + "train:\n  precision: fp8\n", "fp32, tf32, fp16, bf16"},
      {g + "train:\n  batch: 3\n  batch: 4\n", "twice"},
      {g + "train:\n  batch: 3\ntrain:\n  epochs: 4\n", "twice"},
      {g + "loader:\n  workers: 2\n  num_workers: 3\n", "twice"},
      {g + "loader:\n  max_bytes: 3 furlongs\n", "MiB"},
      {g + "loader:\n  max_bytes: -3 MiB\n", "MiB"},
      {g + "loader:\n  workers: many\n", "loader.workers"},
      {g + "loader:\n  workers: -1\n", "from 0"},
      {g + "train:\n  max_time: 3 parsecs\n", "30 min"},
      {g + "evaluation:\n  every: 3 moons\n", "epochs"},
      {g + "schedule:\n  warmup: 3 min\n", "depend on the machine"},
      {g + "optimizer:\n  betas: [0.9]\n", "two numbers"},
      {g + "optimizer:\n  betas: [0.9, 1.5]\n", "below 1"},
      {g + "optimizer:\n  learning_rate: 0\n", "above 0"},
      {g + "model:\n  x: 1\n", "twice"},
      {g + "data:\n  mean: [0.5]\n", "twice"},
      {"model:\n  name: mlp\n  attention_dropout: 0.1\ndata:\n  name: mnist\n", "fused"},
      {"model:\n  name: mlp\n", "data.name"},
      {"data:\n  name: mnist\n", "model.name"},
      {"model:\n  name: alexnet\ndata:\n  name: mnist\n", "resnet18"},
      {g + "run:\n  name: 'abc\n", "never closed"},
      {g + "run:\n  name: \"abc\n", "never closed"},
      {g + "run:\n  name: &a x\n", "anchor"},
      {g + "run:\n  name: *a\n", "alias"},
      {g + "run:\n  name: !!str x\n", "tag"},
      {g + "run:\n  name: |\n    block\n", "block"},
      {g + "---\nmodel:\n  name: cnn\n", "documents"},
      {g + "train: {batch: 3\n", "c.yaml"},
      {g + "train:\n batch: 3\n   epochs: 4\n", "c.yaml"},
      {g + "<<: {a: b}\n", "c.yaml"},
      {g + std::string("run:\n  name: a\0b\n", 17), "control"},
      {g + "run:\n  name: \xff\xfe\n", "UTF-8"},
      {g + "run:\n  name: \xc0\xaf\n", "UTF-8"},
      {g + "train:\n  ? complex\n  : 3\n", "c.yaml"},
      {g + std::string(2 << 20, '#'), "bytes"},
      {g + "x: " + std::string(100, '[') + std::string(100, ']') + "\n", "nested"},
  };
  // Every key with a value that it cannot have, and every key misspelt by one letter.
  for (const schema::Key& key : schema::table()) {
    const std::string section = key.path.substr(0, key.path.find('.'));
    const std::string name = key.path.substr(section.size() + 1);
    if (key.type != "text" && key.type != "text or list of texts" && section != "model" && section != "data") {
      cases.push_back({g + section + ":\n  " + name + ": \"#?\"\n", key.path});
    }
    if (section != "model" && section != "data") {
      cases.push_back({g + section + ":\n  " + name + "q: 1\n", "unknown key"});
    }
  }
  EXPECT_GE(cases.size(), 150u);
  for (const Case& c : cases) {
    const std::string e = error_of(c.text);
    EXPECT_NE(e, "") << c.text.substr(0, 200);
    EXPECT_NE(e.find("c.yaml"), std::string::npos) << e;
    EXPECT_NE(e.find(c.expected), std::string::npos) << c.text.substr(0, 200) << "\n  -> " << e;
  }
}

TEST(Config, PlacesAreLineAndColumn) {
  EXPECT_NE(error_of("model:\n  name: mlp\ndata:\n  name: mnist\ntrain:\n  batch: x\n").find("c.yaml:6:10"),
            std::string::npos);
}

TEST(Config, EveryKeyRoundTripsThroughItsText) {
  const Config c = parse_config(kGood, "c.yaml",
                                std::vector<std::string>{"run.name=a b: c # d", "run.out=\"x'y\"", "train.batch=48",
                                                         "loader.workers=3", "auto_batch.max_scale=none",
                                                         "train.max_time=90 min", "evaluation.every=250 steps",
                                                         "model.hidden=[3,4,5]", "loader.max_bytes=1.5 GiB",
                                                         "data.train=[a.bin, b.bin]", "schedule.warmup=3 %"});
  const std::string text = to_yaml(c);
  const Config again = parse_config(text, "again.yaml");
  EXPECT_TRUE(differences(c, again).empty()) << text;
  EXPECT_EQ(to_yaml(again), text);
  EXPECT_EQ(again.run.name, "a b: c # d");
  EXPECT_EQ(again.run.out, "x'y");
  EXPECT_EQ(again.loader.max_bytes, i64{3} << 29);
  EXPECT_EQ(again.train.max_time, 5400);
  EXPECT_FALSE(again.auto_batch.max_scale.has_value());
  EXPECT_EQ(again.model.hidden, (std::vector<i64>{3, 4, 5}));
}

TEST(Config, OriginsSayWhereAValueComesFrom) {
  const Config c = parse_config(std::string(kGood) + "train:\n  batch: 32\n", "c.yaml",
                                std::vector<std::string>{"train.epochs=2"});
  EXPECT_EQ(origin_of(c, "train.batch"), "c.yaml:6:10");
  EXPECT_EQ(origin_of(c, "train.epochs"), "--set");
  EXPECT_EQ(origin_of(c, "train.accumulate"), "default");
}

TEST(Config, OverridesAreTypedAndAnEmptyOneTakesTheDefaultBack) {
  EXPECT_NE(error_of(kGood, {"train.batch=many"}).find("--set"), std::string::npos);
  EXPECT_NE(error_of(kGood, {"train.bacth=3"}).find("train.batch"), std::string::npos);
  EXPECT_NE(error_of(kGood, {"train.batch"}).find("key.path=value"), std::string::npos);
  EXPECT_NE(error_of(kGood, {"model.hidden=[3,"}), "");
  const Config c = parse_config(std::string(kGood) + "train:\n  batch: 32\n", "c.yaml",
                                std::vector<std::string>{"train.batch="});
  EXPECT_EQ(c.train.batch, default_config().train.batch);
}

TEST(Config, AliasesMeanTheirKeys) {
  const Config c = parse_config(std::string(kGood) + "loader:\n  num_workers: 5\n  prefetch: 3\n", "c.yaml");
  EXPECT_EQ(c.loader.workers, 5);
  EXPECT_EQ(c.loader.depth, 3);
}

TEST(Config, ResumeRefusesFrozenKeysAndLetsOthersGo) {
  const Config saved = parse_config(kGood, "c.yaml");
  EXPECT_NO_THROW(check_resume(saved, parse_config(kGood, "c.yaml", std::vector<std::string>{
                                                                         "loader.workers=4", "train.epochs=99"})));
  EXPECT_THROW(check_resume(saved, parse_config(kGood, "c.yaml", std::vector<std::string>{"run.seed=7"})),
               ConfigError);
  EXPECT_THROW(check_resume(saved, parse_config(kGood, "c.yaml", std::vector<std::string>{"train.epochs=1"})),
               ConfigError);
}

TEST(Config, TheReferenceNamesEveryKeyAndDefaultsLoad) {
  const std::string reference = config_reference();
  for (const std::string& key : config_keys()) {
    EXPECT_NE(reference.find("  " + key.substr(key.find('.') + 1) + ":"), std::string::npos) << key;
  }
  EXPECT_FALSE(completions("train.").empty());
  EXPECT_EQ(completions("train.precision=b"), (std::vector<std::string>{"train.precision=bf16"}));
}

TEST(Config, ShippedConfigurationsLoad) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(PENSTOCK_CONFIGS)) {
    if (entry.path().extension() == ".yaml") {
      EXPECT_NO_THROW((void)load_config(entry.path().string())) << entry.path();
      ++files;
    }
  }
  EXPECT_GE(files, 10);
}

TEST(Json, EscapesAndReadsBack) {
  Json j = Json::object();
  j.set("a\"b", std::string("x\n<\x01\xff\xc3\xa9")).set("n", 1.5).set("i", i64{1} << 60).set("nan", NAN).set("t", true);
  const std::string text = j.dump();
  EXPECT_EQ(text.find('<'), std::string::npos);
  const Json back = Json::parse(text, "t");
  EXPECT_EQ(back.find("n")->number(), 1.5);
  EXPECT_TRUE(back.find("nan")->is_null());
  EXPECT_EQ(back.find("t")->boolean(), true);
  EXPECT_EQ(back.find("i")->dump(), std::to_string(i64{1} << 60));
  EXPECT_THROW((void)Json::parse("{\"a\":1,\"a\":2}", "t"), DataError);
  EXPECT_THROW((void)Json::parse(std::string(100000, '['), "t"), DataError);
  EXPECT_THROW((void)Json::parse("{", "t"), DataError);
}

}  // namespace
}  // namespace penstock::io
