// Checkpoints: committed or not there, resumed from the newest valid one, tidied by rule, and what
// others put beside them stays.
#include "framework/io/checkpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "framework/core/device.h"
#include "framework/io/checkpoint_store.h"
#include "framework/io/signals.h"
#include "tests/storage_helpers.h"

namespace penstock::io {
namespace {

namespace fs = std::filesystem;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct RunFolder {
  TestFolder folder;
  std::string checkpoints = folder / "checkpoints";

  CheckpointStore::Options options(i64 keep_last = 0) const {
    return {.folder = checkpoints,
            .run = "0123456789abcdef",
            .retention = {.keep_last = keep_last, .keep_best = 1},
            .policy = {.patience = 2, .on_full = OnFull::kStop}};
  }
  std::string at(std::string_view name) const { return checkpoints + "/" + std::string(name); }
  std::vector<std::string> names() const { return list_folder(checkpoints); }
};

std::vector<float> weights(i64 step) {
  std::vector<float> w(256);
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = float(step) + float(i) / 1024;
  }
  return w;
}

std::unique_ptr<Snapshot> filled(CheckpointStore& store, i64 step,
                                 std::optional<double> metric = {}) {
  std::unique_ptr<Snapshot> s = store.snapshot();
  s->step = step;
  s->position = step * 32;
  s->metric = metric;
  s->metric_name = metric ? "loss" : "";
  const Tensor w = Tensor::from(weights(step), {16, 16}, kCpu);
  const std::vector<NamedTensor> tensors = {{.name = "w", .tensor = w}};
  s->add_tensors(kModelFile, tensors, {{"kind", "test"}});
  s->add_text(kRunFile, format("{{\"step\":{}}}", step));
  return s;
}

void save(CheckpointStore& store, i64 step, std::optional<double> metric = {}) {
  ASSERT_TRUE(store.save_now(filled(store, step, metric), false).saved);
}

void expect_step(const Checkpoint& checkpoint, i64 step) {
  EXPECT_EQ(checkpoint.manifest().step, step);
  EXPECT_EQ(checkpoint.manifest().position, step * 32);
  EXPECT_EQ(checkpoint.text(kRunFile), format("{{\"step\":{}}}", step));
  const SafetensorsFile file = checkpoint.tensors(kModelFile);
  ASSERT_NE(file.find("w"), nullptr);
  std::vector<float> w(256);
  file.read(*file.find("w"), 0, 256, DType::f32, w.data());
  EXPECT_EQ(w, weights(step));
}

void flip_byte(const std::string& path, std::size_t at) {
  std::string text = contents_of(path);
  text[at] = char(text[at] ^ 1);
  put_file(path, text);
}

// ---- committing and resuming

TEST(StorageCheckpoint, WhatWasSavedComesBack) {
  const RunFolder run;
  {
    CheckpointStore store(run.options());
    EXPECT_FALSE(resume_newest(run.checkpoints));
    save(store, 10, 0.5);
    save(store, 20, 0.7);
  }
  EXPECT_EQ(run.names(), (std::vector<std::string>{"step-00000010", "step-00000020"}));
  const auto found = resume_newest(run.checkpoints);
  ASSERT_TRUE(found);
  expect_step(*found, 20);
  EXPECT_EQ(found->manifest().previous, "step-00000010");
  EXPECT_EQ(found->manifest().sequence, 2);
  EXPECT_EQ(found->manifest().metric, 0.7);
  EXPECT_EQ(found->tensors(kModelFile).metadata("kind"), "test");
  expect_step(Checkpoint(run.at("step-00000010")), 10);
  EXPECT_FALSE(found->has("other"));
  EXPECT_THROW(found->text("other"), StorageError);
}

TEST(StorageCheckpoint, BackgroundSavesAreWholeAndInOrder) {
  const RunFolder run;
  CheckpointStore store(run.options());
  for (i64 step = 1; step <= 5; ++step) {
    store.save_async(filled(store, step));
  }
  const auto outcome = store.wait();
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(outcome->saved) << outcome->error;
  EXPECT_EQ(outcome->step, 5);
  EXPECT_GT(outcome->bytes, 1024);
  EXPECT_FALSE(store.busy());
  EXPECT_FALSE(store.settle());
  EXPECT_EQ(run.names().size(), 5u);
  expect_step(*resume_newest(run.checkpoints), 5);
}

TEST(StorageCheckpoint, TheSnapshotIsACopyOfItsMoment) {
  const RunFolder run;
  CheckpointStore store(run.options());
  const Tensor w = Tensor::from(weights(1), {16, 16}, kCpu);
  const Tensor none = Tensor::zeros({0, 3}, DType::f32, kCpu);
  std::unique_ptr<Snapshot> s = store.snapshot();
  s->step = 1;
  const std::vector<NamedTensor> tensors = {{.name = "w", .tensor = w},
                                            {.name = "none", .tensor = none}};
  s->add_tensors(kModelFile, tensors);
  w.fill_zero();
  const i64 promised = s->disk_bytes();
  const SaveOutcome outcome = store.save_now(std::move(s), true);
  ASSERT_TRUE(outcome.saved);
  EXPECT_LE(outcome.bytes, promised);
  const SafetensorsFile file = resume_newest(run.checkpoints)->tensors(kModelFile);
  std::vector<float> got(256);
  file.read(*file.find("w"), 0, 256, DType::f32, got.data());
  EXPECT_EQ(got, weights(1));
  EXPECT_EQ(file.find("none")->shape, (Shape{0, 3}));
}

TEST(StorageCheckpoint, AStepSavedTwiceKeepsBothAndTheLaterIsNewer) {
  const RunFolder run;
  CheckpointStore store(run.options());
  save(store, 10);
  save(store, 10, 0.5);
  EXPECT_EQ(run.names(), (std::vector<std::string>{"step-00000010", "step-00000010.1"}));
  EXPECT_EQ(resume_newest(run.checkpoints)->path(), run.at("step-00000010.1"));
}

TEST(StorageCheckpoint, NewestIsByCommitAndNotByStep) {
  const RunFolder run;
  CheckpointStore store(run.options());
  save(store, 100);
  save(store, 40);  // resumed from an earlier one
  expect_step(*resume_newest(run.checkpoints), 40);
}

TEST(StorageCheckpoint, Names) {
  EXPECT_EQ(checkpoint_name(1200), "step-00001200");
  EXPECT_EQ(checkpoint_name(1'234'567'890), "step-1234567890");
  EXPECT_EQ(checkpoint_name(7, 2), "step-00000007.2");
  for (const char* good : {"step-00001200", "step-1234567890", "step-00000007.2"}) {
    EXPECT_TRUE(is_checkpoint_name(good)) << good;
  }
  for (const char* bad :
       {"step-1200", "step-", "step-00001200.bad", "step-00001200.", "step-0000120x",
        "step-000001200", "step--0000001", "step-00001200.0", "step-00001200.-1", "xstep-00001200",
        "step-00001200/..", "step-99999999999999999999"}) {
    EXPECT_FALSE(is_checkpoint_name(bad)) << bad;
  }
}

// ---- damage

TEST(StorageCheckpoint, ADamagedOneIsNamedSetAsideAndSkipped) {
  using Spoil = void (*)(const std::string&);
  const std::vector<std::pair<std::string, Spoil>> ways = {
      {"a flipped byte of a tensor",
       [](const std::string& p) { flip_byte(p + "/model.safetensors", 600); }},
      {"a cut file",
       [](const std::string& p) {
         fs::resize_file(p + "/model.safetensors", fs::file_size(p + "/model.safetensors") - 100);
       }},
      {"a longer file",
       [](const std::string& p) { put_file(p + "/run.json", contents_of(p + "/run.json") + " "); }},
      {"zeros in the middle",
       [](const std::string& p) {
         std::string text = contents_of(p + "/model.safetensors");
         text.replace(300, 400, 400, '\0');
         put_file(p + "/model.safetensors", text);
       }},
      {"an empty file", [](const std::string& p) { put_file(p + "/model.safetensors", ""); }},
      {"a missing file", [](const std::string& p) { fs::remove(p + "/run.json"); }},
      {"no manifest", [](const std::string& p) { fs::remove(p + "/manifest.json"); }},
      {"an empty manifest", [](const std::string& p) { put_file(p + "/manifest.json", ""); }},
      {"a flipped byte of the manifest",
       [](const std::string& p) { flip_byte(p + "/manifest.json", 60); }},
      {"a link in place of a file",
       [](const std::string& p) {
         fs::rename(p + "/run.json", p + "/elsewhere");
         fs::create_symlink("elsewhere", p + "/run.json");
       }},
      {"a huge manifest",
       [](const std::string& p) { put_file(p + "/manifest.json", std::string(2 << 20, ' ')); }},
      {"an empty folder", [](const std::string& p) {
         fs::remove_all(p);
         fs::create_directory(p);
       }}};
  for (const auto& [name, spoil] : ways) {
    SCOPED_TRACE(name);
    const RunFolder run;
    {
      CheckpointStore store(run.options());
      save(store, 10);
      save(store, 20);
    }
    spoil(run.at("step-00000020"));
    const auto found = resume_newest(run.checkpoints);
    ASSERT_TRUE(found);
    expect_step(*found, 10);
    EXPECT_EQ(run.names(), (std::vector<std::string>{"step-00000010", "step-00000020.bad"}));
    // The run goes on, past the one set aside.
    CheckpointStore store(run.options());
    save(store, 20);
    expect_step(*resume_newest(run.checkpoints), 20);
    EXPECT_EQ(scan_checkpoints(run.checkpoints).set_aside, 1);
  }
}

TEST(StorageCheckpoint, AllDamagedIsAnErrorAndNeverAFreshStart) {
  const RunFolder run;
  {
    CheckpointStore store(run.options());
    save(store, 10);
  }
  flip_byte(run.at("step-00000010/model.safetensors"), 600);
  for (int again = 0; again < 2; ++again) {
    const std::string text =
        message_of<StorageError>([&] { (void)resume_newest(run.checkpoints); });
    EXPECT_NE(text.find("step-00000010"), std::string::npos) << text;
    EXPECT_NE(text.find("model.safetensors"), std::string::npos) << text;
  }
  fs::rename(run.at("step-00000010"), run.at("step-00000010.bad"));
  EXPECT_THROW((void)resume_newest(run.checkpoints), StorageError);
}

TEST(StorageCheckpoint, AnExplicitPathIsNeverReplacedByAnother) {
  const RunFolder run;
  {
    CheckpointStore store(run.options());
    save(store, 10);
    save(store, 20);
  }
  flip_byte(run.at("step-00000020/model.safetensors"), 600);
  const std::string text =
      message_of<StorageError>([&] { const Checkpoint c(run.at("step-00000020")); });
  EXPECT_NE(text.find("model.safetensors are damaged"), std::string::npos) << text;
  EXPECT_THROW(Checkpoint{run.at("step-00000030")}, StorageError);
  EXPECT_TRUE(fs::exists(run.at("step-00000020")));
}

TEST(StorageCheckpoint, ANewerFormatIsNeitherDamagedNorPassedOver) {
  const RunFolder run;
  {
    CheckpointStore store(run.options());
    save(store, 10);
    save(store, 20);
  }
  // The manifest as a later version would write it, sealed in the way that stays.
  const std::string path = run.at("step-00000020/manifest.json");
  std::string text = contents_of(path);
  text.replace(text.find("\"format\": 1"), 11, "\"format\": 2, \"shards\": 4");
  text.resize(text.rfind("  \"checksum\""));
  const std::string sum = checksum_text(checksum_of(std::as_bytes(std::span(text))));
  put_file(path, text + format("  \"checksum\": \"{}\"\n}}\n", sum));
  const std::string message =
      message_of<NewerFormat>([&] { (void)resume_newest(run.checkpoints); });
  EXPECT_NE(message.find("format 2"), std::string::npos) << message;
  EXPECT_TRUE(fs::exists(run.at("step-00000020")));
  const CheckpointScan scan = scan_checkpoints(run.checkpoints);
  EXPECT_EQ(scan.newer.size(), 1u);
  EXPECT_TRUE(scan.damaged.empty());
}

TEST(StorageCheckpoint, RefusedPermissionsAreNoDamage) {
  if (::geteuid() == 0) {
    // Root reads everything; as nobody in a child.
    const RunFolder run;
    {
      CheckpointStore store(run.options());
      save(store, 10);
      save(store, 20);
    }
    fs::permissions(run.folder.path(), fs::perms(0755));
    fs::permissions(run.at("step-00000020/model.safetensors"), fs::perms::none);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setuid(65534) != 0) {
        ::_exit(3);
      }
      try {
        (void)resume_newest(run.checkpoints);
      } catch (const FileError& e) {
        ::_exit(e.facts().error == EACCES ? 0 : 1);
      } catch (...) {
      }
      ::_exit(2);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_TRUE(fs::exists(run.at("step-00000020")));
  }
}

// ---- what is not ours

TEST(StorageCheckpoint, ForeignFoldersAreUntouched) {
  const RunFolder run;
  fs::create_directories(run.checkpoints);
  const std::vector<std::string> foreign = {".old-5-fedcba9876543210-12345678",
                                            ".tmp-5-fedcba9876543210-12345678", ".tmp-mine", "best",
                                            "step-notes"};
  for (const std::string& name : foreign) {
    fs::create_directory(run.at(name));
    put_file(run.at(name) + "/precious", name);
  }
  fs::create_directory(run.at(".tmp-7-0123456789abcdef-12345678"));
  put_file(run.at(".tmp-7-0123456789abcdef-12345678/model.safetensors"), "half");
  fs::create_directory(run.at(".old-3-0123456789abcdef-12345678"));
  put_file(run.at(".tmp-probe-0123456789abcdef"), "");
  put_file(run.at("..tmp-probe-0123456789abcdef.penstock-12345678"), "");
  CheckpointStore store(run.options(1));
  EXPECT_EQ(run.names(), foreign);  // ours went, theirs stayed
  for (i64 step = 1; step <= 4; ++step) {
    save(store, step);
  }
  std::vector<std::string> expected = foreign;
  expected.insert(std::find(expected.begin(), expected.end(), "step-notes"), "step-00000004");
  EXPECT_EQ(run.names(), expected);
  for (const std::string& name : foreign) {
    EXPECT_EQ(contents_of(run.at(name) + "/precious"), name);
  }
}

TEST(StorageCheckpoint, CheckpointsOfAnotherRunAndLinksStay) {
  const RunFolder run;
  {
    CheckpointStore::Options other = run.options();
    other.run = "fedcba9876543210";
    CheckpointStore store(other);
    save(store, 1);
    save(store, 2);
  }
  fs::create_directory_symlink("step-00000001", run.at("step-00000003"));
  CheckpointStore store(run.options(1));
  save(store, 10);
  save(store, 20);
  EXPECT_EQ(run.names(), (std::vector<std::string>{"step-00000001", "step-00000002",
                                                   "step-00000003", "step-00000020"}));
  expect_step(*resume_newest(run.checkpoints), 20);
  EXPECT_EQ(resume_newest(run.checkpoints)->manifest().sequence, 4);
}

TEST(StorageCheckpoint, ACheckpointWithSomebodysNotesInItIsLeft) {
  const RunFolder run;
  CheckpointStore store(run.options(1));
  save(store, 1);
  put_file(run.at("step-00000001/notes.txt"), "this was the good one");
  save(store, 2);
  save(store, 3);
  EXPECT_EQ(run.names(), (std::vector<std::string>{"step-00000001", "step-00000003"}));
}

TEST(StorageCheckpoint, AFileInPlaceOfTheFolderIsAnError) {
  const RunFolder run;
  put_file(run.checkpoints, "");
  EXPECT_THROW(CheckpointStore{run.options()}, FileError);
}

// ---- retention

TEST(StorageCheckpoint, LastAndBestAreKeptApart) {
  const RunFolder run;
  CheckpointStore store(run.options(2));
  const std::vector<std::optional<double>> metrics = {0.9, kNan, 0.5, 0.7, {}, kInf, 0.8};
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    save(store, i64(i) + 1, metrics[i]);
  }
  EXPECT_EQ(run.names(),
            (std::vector<std::string>{"step-00000003", "step-00000006", "step-00000007"}));
  expect_step(*open_best(run.checkpoints, Better::kLower), 3);
  expect_step(*open_best(run.checkpoints, Better::kHigher), 7);
}

TEST(StorageCheckpoint, BestFallsBackWhenItIsDamagedAndIsNoneWithoutFiniteMetrics) {
  const RunFolder run;
  CheckpointStore store(run.options());
  save(store, 1, kNan);
  save(store, 2);
  EXPECT_FALSE(open_best(run.checkpoints, Better::kLower));
  save(store, 3, 0.5);
  save(store, 4, 0.4);
  flip_byte(run.at("step-00000004/model.safetensors"), 600);
  expect_step(*open_best(run.checkpoints, Better::kLower), 3);
}

TEST(StorageCheckpoint, NothingIsDeletedBeforeTheNewOneIsReadBack) {
  std::vector<Manifest> m(5);
  for (std::size_t i = 0; i < m.size(); ++i) {
    m[i].sequence = i64(i) + 1;
  }
  EXPECT_EQ(superseded(m, {.keep_last = 1}), (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_TRUE(superseded(m, {.keep_last = 0}).empty());
  EXPECT_TRUE(superseded(m, {.keep_last = 9}).empty());
  EXPECT_TRUE(superseded({}, {.keep_last = 1}).empty());
  m[1].metric = 0.5;
  m[2].metric = 0.5;  // no better than the earlier one
  EXPECT_EQ(superseded(m, {.keep_last = 1, .keep_best = 1}), (std::vector<std::size_t>{0, 2, 3}));
  m[0].metric = 0.6;
  EXPECT_EQ(superseded(m, {.keep_last = 1, .keep_best = 1, .better = Better::kHigher}),
            (std::vector<std::size_t>{1, 2, 3}));
}

// ---- rules

TEST(StorageCheckpoint, NanIsNeverTheBest) {
  BestMetric lower(Better::kLower);
  EXPECT_TRUE(lower.update(0.9));
  EXPECT_FALSE(lower.update(kNan));
  EXPECT_TRUE(lower.update(0.5));
  EXPECT_FALSE(lower.update(0.7));
  EXPECT_FALSE(lower.update(-kInf));
  EXPECT_EQ(lower.best(), 0.5);
  EXPECT_EQ(lower.without_improvement(), 2);
  BestMetric higher(Better::kHigher);
  EXPECT_FALSE(higher.update(kNan));
  EXPECT_FALSE(higher.update(kInf));
  EXPECT_EQ(higher.without_improvement(), 2);
  EXPECT_TRUE(higher.update(0.1));
  EXPECT_FALSE(higher.update(0.1));
  EXPECT_EQ(higher.best(), 0.1);
}

TEST(StorageCheckpoint, FailedSavesAreWarnedAboutThenStop) {
  FailureRule stop({.patience = 3, .on_full = OnFull::kStop});
  using Action = FailureRule::Action;
  EXPECT_EQ(stop.failed(false), Action::kContinue);
  EXPECT_EQ(stop.failed(false), Action::kContinue);
  stop.succeeded();
  EXPECT_EQ(stop.failed(false), Action::kContinue);
  EXPECT_EQ(stop.failed(false), Action::kContinue);
  EXPECT_EQ(stop.failed(false), Action::kStop);
  FailureRule last({.patience = 3, .on_full = OnFull::kPause});
  EXPECT_EQ(last.failed(true), Action::kPause);
}

TEST(StorageCheckpoint, TheIntervalFollowsTheCost) {
  SaveInterval interval({}, 0);
  EXPECT_FALSE(interval.due(59));
  EXPECT_TRUE(interval.due(60));
  interval.saved(60, 6);  // 3 % of 200 s
  EXPECT_NEAR(interval.interval(), 200, 1e-9);
  EXPECT_FALSE(interval.due(259));
  EXPECT_TRUE(interval.due(261));
  EXPECT_FALSE(interval.stretched());
  interval.saved(300, 30);
  EXPECT_NEAR(interval.interval(), 1000, 1e-9);  // the budget before the longest interval
  EXPECT_TRUE(interval.stretched());
  SaveInterval fixed({.seconds = 10}, 0);
  EXPECT_TRUE(fixed.due(10));
  fixed.saved(10, 1.5);
  EXPECT_NEAR(fixed.interval(), 50, 1e-9);
  EXPECT_TRUE(fixed.stretched());
  EXPECT_FALSE(fixed.affordable(59));
  EXPECT_TRUE(fixed.affordable(61));
}

TEST(StorageCheckpoint, WithoutAFolderToWriteToTheRunPausesUntilThereIsOne) {
  const RunFolder run;
  CheckpointStore::Options options = run.options();
  options.policy = {.patience = 2, .on_full = OnFull::kPause, .poll_seconds = 5};
  int waits = 0;
  options.wait = [&](double seconds) {
    EXPECT_EQ(seconds, 5);
    if (++waits == 3) {
      fs::rename(run.folder / "away", run.checkpoints);
      return Wake::kRetry;
    }
    return Wake::kTimeout;
  };
  CheckpointStore store(options);
  save(store, 1);
  fs::rename(run.checkpoints, run.folder / "away");
  const SaveOutcome first = store.save_now(filled(store, 2), false);
  EXPECT_FALSE(first.saved);
  EXPECT_NE(first.error.find("checkpoints"), std::string::npos) << first.error;
  EXPECT_EQ(store.failures(), 1);
  EXPECT_EQ(waits, 0);
  store.save_async(filled(store, 3));
  const auto second = store.wait();
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->saved);
  EXPECT_EQ(waits, 3);
  EXPECT_EQ(store.failures(), 0);
  expect_step(*resume_newest(run.checkpoints), 3);
}

TEST(StorageCheckpoint, AStopWhilePausedAndAStopPolicyAreStorageErrors) {
  const RunFolder run;
  CheckpointStore::Options options = run.options();
  options.policy = {.patience = 1, .on_full = OnFull::kPause};
  options.wait = [](double) { return Wake::kStop; };
  {
    CheckpointStore store(options);
    save(store, 1);
    fs::rename(run.checkpoints, run.folder / "away");
    EXPECT_THROW(store.save_now(filled(store, 2), false), StorageError);
    fs::rename(run.folder / "away", run.checkpoints);
  }
  CheckpointStore store(run.options());
  fs::rename(run.checkpoints, run.folder / "away");
  const std::string text =
      message_of<StorageError>([&] { store.save_now(filled(store, 2), true); });
  EXPECT_NE(text.find("step-00000001) stands"), std::string::npos) << text;
  fs::rename(run.folder / "away", run.checkpoints);
  expect_step(*resume_newest(run.checkpoints), 1);
}

// ---- manifests

TEST(StorageManifest, ThereIsOneTextForOneManifest) {
  Manifest m{.run = "0123456789abcdef",
             .writer = "penstock 0.1.0",
             .sequence = 3,
             .step = 1200,
             .position = 76800,
             .metric_name = "val/loss",
             .metric = 0.1,
             .previous = "step-00001100",
             .files = {{.name = "model.safetensors", .bytes = 12, .checksum = 0xABC}}};
  const std::vector<std::optional<double>> metrics = {{},   0.1,  -0.0,  3.0,
                                                      kNan, kInf, -kInf, 5e-324};
  for (const auto& metric : metrics) {
    m.metric = metric;
    const std::string text = manifest_text(m);
    EXPECT_EQ(manifest_text(parse_manifest(text, "here")), text);
  }
  const std::string text = manifest_text(m);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = char(other[i] ^ 1);
    EXPECT_THROW(parse_manifest(other, "here"), StorageError) << i;
    EXPECT_THROW(parse_manifest(text.substr(0, i), "here"), StorageError) << i;
  }
  EXPECT_THROW(parse_manifest(text + " ", "here"), StorageError);
}

TEST(StorageManifest, SealedTextWithForbiddenContentsIsRefused) {
  const auto sealed = [](const std::string& files, const std::string& step = "1") {
    const std::string text = format(
        "{{\n  \"format\": 1,\n  \"run\": \"r\",\n  \"writer\": \"w\",\n  \"sequence\": 1,\n"
        "  \"step\": {},\n  \"position\": 1,\n  \"metric_name\": \"\",\n  \"metric\": null,\n"
        "  \"previous\": \"\",\n  \"files\": [{}\n  ],\n",
        step, files);
    return text + format("  \"checksum\": \"{}\"\n}}\n",
                         checksum_text(checksum_of(std::as_bytes(std::span(text)))));
  };
  const auto file = [](const std::string& name, const std::string& bytes = "1") {
    return format("\n    {{\"name\": \"{}\", \"bytes\": {}, \"xxh3\": \"0000000000000000\"}}", name,
                  bytes);
  };
  EXPECT_EQ(parse_manifest(sealed(file("a")), "here").files.size(), 1u);
  for (const std::string name : {"../a", "/etc/passwd", "a/b", ".", "..", ".hidden", "", "a\\u0000",
                                 "manifest.json", "a b"}) {
    EXPECT_THROW(parse_manifest(sealed(file(name)), "here"), StorageError) << name;
  }
  EXPECT_THROW(parse_manifest(sealed(file("a") + "," + file("a")), "here"), StorageError);
  for (const std::string number : {"-1", "1.0", "1e3", "9223372036854775808", "\"1\"", "null", "01",
                                   "99999999999999999999999"}) {
    EXPECT_THROW(parse_manifest(sealed(file("a", number)), "here"), StorageError) << number;
    EXPECT_THROW(parse_manifest(sealed(file("a"), number), "here"), StorageError) << number;
  }
  std::string many = file("f0");
  for (int i = 1; i < 65; ++i) {
    many += "," + file(format("f{}", i));
  }
  EXPECT_THROW(parse_manifest(sealed(many), "here"), StorageError);
  EXPECT_THROW(parse_manifest(std::string(500'000, '['), "here"), StorageError);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) {
    deep += "{\"a\":";
  }
  EXPECT_THROW(parse_manifest(deep, "here"), StorageError);
}

}  // namespace
}  // namespace penstock::io
