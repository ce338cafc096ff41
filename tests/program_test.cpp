// The program end to end: exit codes, killed and resumed runs, what it leaves behind.
#include <gtest/gtest.h>

#include <set>

#include "framework/io/json.h"
#include "tests/program.h"

namespace penstock {
namespace {

using program::read_file;
using program::Result;
using program::TemporaryFolder;

const char* const kSmall = R"(
model:
  name: mlp
  hidden: [48, 32]
  dropout: 0.1
data:
  name: synthetic_images
  image_size: 12
  channels: 1
  samples: 1000
  validation_samples: 64
  crop_pad: 1
  flip: true
train:
  batch: 16
  epochs: 4
  threads: 1
optimizer:
  name: adamw
  learning_rate: 0.002
schedule:
  warmup: 5 %
checkpoint:
  every: 20 steps
  keep_last: 3
log:
  interval: 10 steps
  tensorboard: false
)";

std::string write_config(const TemporaryFolder& folder, const std::string& text = kSmall) {
  const std::string path = folder / "small.yaml";
  std::ofstream(path) << text;
  return path;
}

// Lines of metrics.jsonl by step, without times, rates, memory and what the tuner sets.
std::map<std::string, std::string> metrics_of(const std::string& folder) {
  static const std::set<std::string> kMachine = {
      "seconds", "samples_per_second", "workers", "depth",  "io_concurrency",
      "account", "dram",               "memory",  "limit", "evaluation_seconds"};
  std::map<std::string, std::string> lines;
  std::stringstream in(read_file(folder + "/metrics.jsonl"));
  std::string line;
  while (std::getline(in, line)) {
    const io::Json j = io::Json::parse(line, "metrics.jsonl");
    if (j.find("step") == nullptr) {
      continue;
    }
    std::string kept;
    for (const auto& [key, value] : *j.members()) {
      if (kMachine.count(key) == 0) {
        kept += key + "=" + value.dump() + " ";
      }
    }
    // Training and validation lines of one step are told apart by their keys; the newest wins.
    const std::string id = j.find("step")->dump() + (j.find("loss") != nullptr ? " train" : " validation");
    lines[id] = kept;
  }
  return lines;
}

std::string newest_checkpoint(const std::string& folder) {
  std::string newest;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find(".bad") == std::string::npos) {
      newest = std::max(newest, entry.path().string());
    }
  }
  return newest;
}

TEST(Program, ExitCodesAreTheDocumentedOnes) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder);
  EXPECT_EQ(program::run({"info"}).code, 0);
  EXPECT_EQ(program::run({"--version"}).code, 0);
  EXPECT_EQ(program::run({"trian", config}).code, 2);
  EXPECT_EQ(program::run({"train"}).code, 2);
  EXPECT_EQ(program::run({"train", folder / "none.yaml"}).code, 2);
  EXPECT_EQ(program::run({"train", config, "--set", "train.batch=0"}).code, 2);
  EXPECT_EQ(program::run({"train", config, "--set", "a", "b"}).code, 2);
  EXPECT_EQ(program::run({"train", config, "--auto-batch=largest"}).code, 2);
  EXPECT_EQ(program::run({"train", config, "--set", "data.name=mnist", "--set", "data.dir=" + folder.path()}).code, 3);
  EXPECT_EQ(program::run({"train", config, "--set", "memory.limit=1 KiB", "--out", folder / "m"}).code, 4);
  EXPECT_EQ(program::run({"train", config, "--resume", "--out", folder / "r"}).code, 6);
  EXPECT_EQ(program::run({"train", config, "--set", "optimizer.learning_rate=1e6", "--set", "train.on_nan=stop",
                          "--set", "optimizer.name=sgd", "--out", folder / "d"})
                .code,
            5);
}

TEST(Program, ErrorsNameFileLineAndNearestKey) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder, "model:\n  name: mlp\ndata:\n  name: mnist\ntrain:\n  bach: 3\n");
  const Result r = program::run({"train", config, "--json"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("small.yaml:6:3"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("train.batch"), std::string::npos) << r.err;
  const io::Json j = io::Json::parse(r.out, "stdout");
  EXPECT_EQ(j.find("exit_code")->number().value_or(0), 2);
}

TEST(Program, ARunLeavesWhatItPromises) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder);
  const Result r = program::run({"train", config, "--out", folder / "run", "--json", "--set", "train.epochs=1",
                                 "--set", "log.trace_steps=5"});
  ASSERT_EQ(r.code, 0) << r.err;
  const io::Json trace = io::Json::parse(read_file(folder / "run/trace.json"), "trace.json");
  EXPECT_TRUE(trace.find("traceEvents") != nullptr && trace.find("traceEvents")->items()->size() > 20);
  const io::Json summary = io::Json::parse(r.out, "stdout");
  EXPECT_EQ(summary.at("status")->text().value_or(""), "done");
  EXPECT_EQ(summary.at("samples")->number().value_or(0), 1000);
  EXPECT_EQ(summary.at("steps")->number().value_or(0), 63);  // the last batch of 8 is trained as well
  for (const char* file : {"config.resolved.yaml", "metrics.jsonl", "decisions.jsonl", "summary.json",
                           "report.html"}) {
    EXPECT_TRUE(std::filesystem::exists(folder / ("run/" + std::string(file)))) << file;
  }
  // The account adds up.
  const double wall = summary.at("account.wall")->number().value_or(0);
  EXPECT_GT(wall, 0);
  // It reads its own configuration, evaluates, exports and reports again.
  EXPECT_EQ(program::run({"check", folder / "run/config.resolved.yaml"}).code, 0);
  const Result eval = program::run({"eval", config, "--out", folder / "run", "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_DOUBLE_EQ(io::Json::parse(eval.out, "eval").at("accuracy")->number().value_or(-1),
                   summary.at("validation_accuracy")->number().value_or(-2));
  EXPECT_EQ(program::run({"export", config, "--out", folder / "run", "--to", folder / "m.safetensors"}).code, 0);
  EXPECT_EQ(program::run({"report", folder / "run"}).code, 0);
  EXPECT_EQ(program::run({"runs", folder.path()}).code, 0);
  EXPECT_EQ(program::run({"replay", folder / "run/decisions.jsonl"}).code, 0);
  // A second process in the same folder must not start beside it; after it, it may.
  EXPECT_EQ(program::run({"compare", folder / "run", folder / "run"}).code, 0);
}

// exact: the same bits and the same metrics, whenever it was killed and however often.
TEST(Program, KilledRunsResumeExactly) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder);
  const auto begin = std::chrono::steady_clock::now();
  const Result whole = program::run({"train", config, "--out", folder / "whole"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  // Kills come at shares of what a whole run takes here, so that they hit it on any machine.
  const auto whole_ms = double(std::chrono::duration_cast<std::chrono::milliseconds>(
                                   std::chrono::steady_clock::now() - begin)
                                   .count());
  const std::string expected = read_file(newest_checkpoint(folder / "whole") + "/model.safetensors");
  const std::string expected_state = read_file(newest_checkpoint(folder / "whole") + "/state.safetensors");
  ASSERT_FALSE(expected.empty());
  int kills = 0;
  for (int round = 0; round < 4 || (kills < 3 && round < 16); ++round) {
    const std::string out = folder / ("killed" + std::to_string(round));
    int code = -1;
    for (int attempt = 0; attempt < 60 && code != 0; ++attempt) {
      // Later attempts get longer, so that every chain ends.
      const Result r = program::run({"train", config, "--out", out, "--resume=auto", "--set",
                                     "loader.workers=" + std::to_string(attempt % 3)},
                                    {.kill_after_ms = int(whole_ms * (0.2 + 0.13 * (round % 4) + 0.1 * attempt))});
      code = r.code;
      kills += code == 128 + SIGKILL ? 1 : 0;
      ASSERT_TRUE(code == 0 || code == 128 + SIGKILL) << r.err;
    }
    ASSERT_EQ(code, 0);
    EXPECT_TRUE(read_file(newest_checkpoint(out) + "/model.safetensors") == expected) << "round " << round;
    EXPECT_TRUE(read_file(newest_checkpoint(out) + "/state.safetensors") == expected_state) << "round " << round;
    EXPECT_EQ(metrics_of(out), metrics_of(folder / "whole")) << "round " << round;
  }
  EXPECT_GE(kills, 3) << "the kills did not hit the runs";
}

TEST(Program, ASignalSavesAndEndsWithItsCode) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder);
  const Result r = program::run({"train", config, "--out", folder / "run", "--set", "train.epochs=5000"},
                                {.kill_after_ms = 600, .signal = SIGTERM});
  EXPECT_EQ(r.code, 143) << r.err;
  EXPECT_FALSE(newest_checkpoint(folder / "run").empty());
  EXPECT_EQ(program::run({"train", config, "--out", folder / "run", "--resume", "--set", "train.epochs=5000",
                          "--set", "train.max_steps=1"})
                .code,
            0);
}

TEST(Program, FrozenKeysAreRefusedOnResume) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder);
  ASSERT_EQ(program::run({"train", config, "--out", folder / "run", "--set", "train.epochs=1"}).code, 0);
  const Result r = program::run({"train", config, "--out", folder / "run", "--resume", "--set", "train.epochs=2",
                                 "--set", "run.seed=9"});
  EXPECT_EQ(r.code, 2);
  EXPECT_NE(r.err.find("run.seed"), std::string::npos) << r.err;
}

// The samples and their augmentation do not depend on workers, depth or the tuner; neither do weights.
TEST(Program, WorkersAndTunerDoNotChangeTheNumbers) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder);
  std::vector<std::string> weights;
  int run = 0;
  for (const std::vector<std::string>& set : std::vector<std::vector<std::string>>{
           {"loader.workers=0", "loader.depth=1"}, {"loader.workers=3", "loader.depth=6"}, {"data.cost=200 us"}}) {
    std::vector<std::string> arguments = {"train", config, "--out", folder / std::to_string(run),
                                          "--set", "train.epochs=2"};
    for (const std::string& s : set) {
      arguments.insert(arguments.end(), {"--set", s});
    }
    const Result r = program::run(arguments);
    ASSERT_EQ(r.code, 0) << r.err;
    weights.push_back(read_file(newest_checkpoint(folder / std::to_string(run)) + "/model.safetensors"));
    ++run;
  }
  EXPECT_TRUE(weights[0] == weights[1]);
  EXPECT_TRUE(weights[0] == weights[2]);
}

// Probing does not touch the run that follows: it equals one that was told the batch.
TEST(Program, ProbeThenTrainEqualsTrainAtThatBatch) {
  const TemporaryFolder folder;
  const std::string config = write_config(folder);
  const Result probed =
      program::run({"train", config, "--auto-batch=hold", "--out", folder / "probed", "--json", "--set",
                    "train.epochs=1", "--set", "auto_batch.budget_seconds=3 s"});
  ASSERT_EQ(probed.code, 0) << probed.err;
  const io::Json summary = io::Json::parse(probed.out, "summary");
  EXPECT_EQ(summary.at("auto_batch.failed_allocations")->number().value_or(-1), 0);
  const auto micro = i64(summary.at("batch")->number().value_or(0));
  const auto accumulate = i64(summary.at("accumulate")->number().value_or(0));
  ASSERT_EQ(micro * accumulate, 16);
  const Result told = program::run({"train", config, "--out", folder / "told", "--set", "train.epochs=1", "--set",
                                    "train.batch=" + std::to_string(micro), "--set",
                                    "train.accumulate=" + std::to_string(accumulate)});
  ASSERT_EQ(told.code, 0) << told.err;
  EXPECT_TRUE(read_file(newest_checkpoint(folder / "probed") + "/model.safetensors") ==
              read_file(newest_checkpoint(folder / "told") + "/model.safetensors"));
}

}  // namespace
}  // namespace penstock
