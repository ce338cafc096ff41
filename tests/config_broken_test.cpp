// Broken configurations: each is refused where it is broken, with a hint. "^" marks the place in
// the text and is not part of it; without one, the whole file is meant.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/io/config.h"

namespace penstock::io {
namespace {

using namespace std::string_literals;

enum Base { kNone, kGood };  // kGood: the text follows four lines that are a whole configuration

struct Broken {
  Base base;
  std::string text;
  std::string hint;  // part of the message
};

const std::vector<Broken>& table() {
  // clang-format off
  static const std::vector<Broken> all = {
    // no configuration at all
    {kNone, "^", "empty"},
    {kNone, "^\n\n", "empty"},
    {kNone, "^# a comment\n", "empty"},
    {kNone, "^---\n", "empty"},
    {kNone, "^~\n", "empty"},
    {kNone, "^null\n", "empty"},
    {kNone, "^hello\n", "sections"},
    {kNone, "^42\n", "sections"},
    {kNone, "^- model\n- data\n", "sections"},
    {kNone, "^[model, data]\n", "sections"},
    {kNone, "^\"model: mlp\"\n", "sections"},
    // sections
    {kNone, "model: ^mlp\n", "expected a section"},
    {kNone, "model: ^[mlp]\n", "found a list"},
    {kNone, "model:\n  ^- name: mlp\n", "found a list"},
    {kNone, "^modle:\n  name: mlp\n", "nearest: model"},
    {kNone, "^Model:\n  name: mlp\n", "nearest: model"},
    {kNone, "^dataset:\n  name: mnist\n", "nearest: data"},
    {kGood, "^optimiser:\n  name: sgd\n", "nearest: optimizer"},
    {kGood, "^training:\n  batch: 3\n", "nearest: train"},
    {kGood, "^auto-batch:\n  max: 3\n", "nearest: auto_batch"},
    {kGood, "^checkpoints:\n  keep_last: 3\n", "nearest: checkpoint"},
    {kGood, "^qwerty:\n  a: 1\n", "there are: run, model"},
    {kGood, "^zzz:\n  a: 1\n", "unknown section"},
    {kGood, "^lr: 0.1\n", "nearest: optimizer.learning_rate"},
    {kGood, "^batch: 3\n", "nearest: train.batch"},
    {kGood, "^batch_size: 3\n", "nearest: train.batch"},
    {kGood, "^num_workers: 3\n", "nearest: loader.workers"},
    {kGood, "^train.batch: 3\n", "below a line \"train:\""},
    {kGood, "^optimizer.lr: 3\n", "learning_rate below a line \"optimizer:\""},
    {kGood, "^epochs: 3\n", "nearest: train.epochs"},
    {kGood, "^seed: 3\n", "nearest: run.seed"},
    {kGood, "^model:\n  layers: 3\n", "twice"},
    {kGood, "train:\n  batch: 3\n^train:\n  epochs: 3\n", "first in line 5"},
    {kGood, "^<<: {a: b}\n", "merge"},
    {kGood, "train:\n  ^<<: {batch: 3}\n", "merge"},
    {kGood, "^1: 2\n", "unknown key"},
    {kGood, "^null: 2\n", "a key is a word"},
    {kGood, "^~: 2\n", "a key is a word"},
    {kGood, "^\"\": 2\n", "a key is a word"},
    {kGood, "? ^[a]\n: 2\n", "a key is a word"},
    {kGood, "? ^{a: b}\n: 2\n", "a key is a word"},
    {kGood, "train:\n  ? ^[a]\n  : 2\n", "a key is a word"},
    // keys
    {kGood, "train:\n  ^batc: 1\n", "nearest: train.batch"},
    {kGood, "train:\n  ^bath: 1\n", "nearest: train.batch"},
    {kGood, "train:\n  ^btach: 1\n", "nearest: train.batch"},
    {kGood, "train:\n  ^Batch: 1\n", "nearest: train.batch"},
    {kGood, "train:\n  ^batchsize: 1\n", "nearest: train.batch"},
    {kGood, "train:\n  ^num-workers: 1\n", "nearest: loader.workers"},
    {kGood, "loader:\n  ^num-workers: 1\n", "nearest: loader.workers"},
    {kGood, "loader:\n  ^worker: 1\n", "nearest: loader.workers"},
    {kGood, "loader:\n  ^wrokers: 1\n", "nearest: loader.workers"},
    {kGood, "loader:\n  ^prefetch_factor: 1\n", "nearest: loader.depth"},
    {kGood, "loader:\n  ^batch_size: 1\n", "nearest: train.batch"},
    {kGood, "train:\n  ^learning_rate: 1\n", "nearest: optimizer.learning_rate"},
    {kGood, "train:\n  ^learning_rat: 1\n", "nearest: optimizer.learning_rate"},
    {kGood, "train:\n  ^lr: 1\n", "nearest: optimizer.learning_rate"},
    {kGood, "optimizer:\n  ^learningrate: 1\n", "nearest: optimizer.learning_rate"},
    {kGood, "optimizer:\n  ^weight-decay: 1\n", "nearest: optimizer.weight_decay"},
    {kGood, "optimizer:\n  ^wd: 1\n", "nearest: optimizer.weight_decay"},
    {kGood, "optimizer:\n  ^eps: 1\n", "nearest: optimizer.epsilon"},
    {kGood, "optimizer:\n  ^beta1: 1\n", "nearest: optimizer.betas"},
    {kGood, "optimizer:\n  ^nestrov: 1\n", "nearest: optimizer.nesterov"},
    {kGood, "train:\n  ^amp: 1\n", "nearest: train.precision"},
    {kGood, "train:\n  ^dtype: 1\n", "nearest: train.precision"},
    {kGood, "train:\n  ^max_epochs: 1\n", "nearest: train.epochs"},
    {kGood, "train:\n  ^epoch: 1\n", "nearest: train.epochs"},
    {kGood, "train:\n  ^gradient_accumulation_steps: 1\n", "nearest: train.accumulate"},
    {kGood, "train:\n  ^grad_clip: 1\n", "nearest: optimizer.clip_norm"},
    {kGood, "train:\n  ^seed: 1\n", "nearest: run.seed"},
    {kGood, "train:\n  ^precison: 1\n", "nearest: train.precision"},
    {kGood, "run:\n  ^output_dir: 1\n", "nearest: run.out"},
    {kGood, "schedule:\n  ^min_lr: 1\n", "nearest: schedule.final"},
    {kGood, "schedule:\n  ^warm_up: 1\n", "nearest: schedule.warmup"},
    {kGood, "schedule:\n  ^warmup_steps: 1\n", "nearest: schedule.warmup"},
    {kGood, "log:\n  ^intervall: 1\n", "nearest: log.interval"},
    {kGood, "checkpoint:\n  ^keep_lst: 1\n", "nearest: checkpoint.keep_last"},
    {kGood, "checkpoint:\n  ^save_total_limit: 1\n", "nearest: checkpoint.keep_last"},
    {kGood, "storage:\n  ^patients: 1\n", "nearest: storage.patience"},
    {kGood, "memory:\n  ^workspace: 1\n", "unknown key"},
    {kGood, "memory:\n  ^limits: 1\n", "nearest: memory.limit"},
    {kGood, "evaluation:\n  ^evry: 1\n", "nearest: evaluation.every"},
    {kGood, "auto_batch:\n  ^knees: 1\n", "nearest: auto_batch.knee"},
    {kGood, "auto_batch:\n  ^policys: 1\n", "nearest: auto_batch.policy"},
    {kGood, "log:\n  ^zzzzzz: 1\n", "lists all keys"},
    {kNone, "model:\n  name: mlp\n  ^hidden_size: 3\n", "nearest: model.width"},
    {kNone, "model:\n  name: mlp\n  ^n_layer: 3\n", "nearest: model.layers"},
    {kNone, "data:\n  name: mnist\n  ^path: x\n", "unknown key"},
    {kNone, "data:\n  name: mnist\n  ^std: [1]\n", "nearest: data.deviation"},
    {kGood, "train:\n  batch: 3\n  ^batch: 3\n", "first in line 6"},
    {kGood, "train: {batch: 3, ^batch: 4}\n", "twice"},
    {kGood, "train:\n  batch: 3\n  ^batch_size: 4\n", "another name of train.batch"},
    {kGood, "loader:\n  num_workers: 3\n  ^workers: 4\n", "another name of loader.workers"},
    {kGood, "train:\n  ^'batch ': 3\n", "nearest: train.batch"},
    {kGood, "train:\n  ^\"ba\\x1b[31mtch\": 3\n", "\"train.ba\\x1b[31mtch\""},
    // values of the wrong kind
    {kGood, "train:\n  batch: ^~\n", "found nothing"},
    {kGood, "train:\n  batch: ^null\n", "found nothing"},
    {kGood, "train:\n  batch: ^[64]\n", "found a list"},
    {kGood, "train:\n  batch: ^{a: 1}\n", "found a section"},
    {kGood, "train:\n  batch:\n    ^- 64\n", "found a list"},
    {kGood, "train:\n  batch:\n    ^size: 64\n", "found a section"},
    {kGood, "train:\n  batch: ^'64'\n", "leave the quotes out"},
    {kGood, "train:\n  deterministic: ^\"true\"\n", "leave the quotes out"},
    {kGood, "optimizer:\n  learning_rate: ^\"0.1\"\n", "leave the quotes out"},
    {kGood, "loader:\n  workers: ^\"auto\"\n", "leave the quotes out"},
    {kGood, "optimizer:\n  betas: ^[\"0.9\", 0.99]\n", "leave the quotes out"},
    {kGood, "run:\n  name: ^[a, b]\n", "found a list"},
    {kGood, "run:\n  name: ^{a: b}\n", "found a section"},
    {kGood, "optimizer:\n  betas: [0.9, ^[0.99]]\n", "a list in a list"},
    {kGood, "optimizer:\n  betas: [0.9, ^{a: 1}]\n", "found a section"},
    {kGood, "train:\n  precision: ^[bf16]\n", "found a list"},
    {kGood, "train:\n  max_time: ^[1 s]\n", "found a list"},
    {kGood, "evaluation:\n  every: ^[1 epochs]\n", "found a list"},
    {kGood, "loader:\n  max_bytes: ^[1]\n", "found a list"},
    // integers
    {kGood, "train:\n  batch: ^010\n", "octal"},
    {kGood, "train:\n  batch: ^08\n", "octal"},
    {kGood, "train:\n  batch: ^-010\n", "octal"},
    {kGood, "train:\n  batch: ^0o17\n", "decimal"},
    {kGood, "train:\n  batch: ^0x10\n", "decimal"},
    {kGood, "train:\n  batch: ^0b11\n", "decimal"},
    {kGood, "train:\n  batch: ^1.5\n", "integer"},
    {kGood, "train:\n  batch: ^-1\n", "at least 1"},
    {kGood, "train:\n  batch: ^0\n", "at least 1"},
    {kGood, "train:\n  batch: ^1e-1\n", "integer"},
    {kGood, "train:\n  batch: ^1e30\n", "at most 1048576"},
    {kGood, "train:\n  batch: ^1e400\n", "beyond"},
    {kGood, "train:\n  batch: ^18446744073709551616\n", "at most"},
    {kGood, "train:\n  batch: ^9223372036854775808\n", "at most"},
    {kGood, "train:\n  batch: ^.inf\n", "integer"},
    {kGood, "train:\n  batch: ^.nan\n", "integer"},
    {kGood, "train:\n  batch: ^-.inf\n", "integer"},
    {kGood, "train:\n  batch: ^nan\n", "integer"},
    {kGood, "train:\n  batch: ^yes\n", "integer"},
    {kGood, "train:\n  batch: ^true\n", "integer"},
    {kGood, "train:\n  batch: ^1_000\n", "without separators"},
    {kGood, "train:\n  batch: ^1,000\n", "without separators"},
    {kGood, "train:\n  batch: ^1 000\n", "without separators"},
    {kGood, "train:\n  batch: ^64x\n", "found \"64x\""},
    {kGood, "train:\n  batch: ^64 samples\n", "integer"},
    {kGood, "train:\n  batch: ^--4\n", "integer"},
    {kGood, "train:\n  batch: ^+\n", "integer"},
    {kGood, "train:\n  batch: ^e5\n", "integer"},
    {kGood, "train:\n  batch: ^1e\n", "integer"},
    {kGood, "train:\n  batch: ^4/2\n", "integer"},
    {kGood, "train:\n  batch: ^$BATCH\n", "integer"},
    {kGood, "train:\n  batch: ^${oc.env:BATCH}\n", "integer"},
    {kGood, "run:\n  seed: ^-1\n", "at least 0"},
    {kGood, "run:\n  seed: ^18446744073709551615\n", "at most 9000000000000000"},
    {kGood, "run:\n  seed: ^0.5\n", "integer"},
    {kGood, "train:\n  epochs: ^1e7\n", "at most 1000000"},
    {kGood, "train:\n  accumulate: ^0\n", "from 1 to 65536"},
    {kGood, "train:\n  accumulate: ^65537\n", "from 1 to 65536"},
    {kGood, "log:\n  trace_steps: ^20000\n", "from 0 to 10000"},
    {kGood, "loader:\n  workers: ^-1\n", "from 0 to 1024"},
    {kGood, "loader:\n  workers: ^many\n", "integer"},
    {kGood, "loader:\n  workers: ^Auto\n", "integer"},
    {kGood, "loader:\n  depth: ^0\n", "from 1 to 1024"},
    {kGood, "loader:\n  depth: ^2.5\n", "integer"},
    {kGood, "train:\n  threads: ^0\n", "from 1 to 1024"},
    {kGood, "checkpoint:\n  keep_last: ^-1\n", "at least 0"},
    // numbers
    {kGood, "optimizer:\n  learning_rate: ^0\n", "above 0"},
    {kGood, "optimizer:\n  learning_rate: ^-0.1\n", "above 0"},
    {kGood, "optimizer:\n  learning_rate: ^0,1\n", "point before decimals"},
    {kGood, "optimizer:\n  learning_rate: ^0.1x\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^1e\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^.\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^1.2.3\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^01.5\n", "octal"},
    {kGood, "optimizer:\n  learning_rate: ^.inf\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^.nan\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^NaN\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^1e400\n", "beyond"},
    {kGood, "optimizer:\n  learning_rate: ^1e-400\n", "beyond"},
    {kGood, "optimizer:\n  learning_rate: ^1e7\n", "at most 1000000"},
    {kGood, "optimizer:\n  learning_rate: ^auto\n", "number"},
    {kGood, "optimizer:\n  learning_rate: ^0x1p-3\n", "decimal"},
    {kGood, "optimizer:\n  learning_rate: ^1e-4 f\n", "number"},
    {kGood, "optimizer:\n  momentum: ^1\n", "from 0 to 0.9999"},
    {kGood, "train:\n  label_smoothing: ^1\n", "from 0 to 0.9"},
    {kGood, "auto_batch:\n  knee: ^0.2\n", "from 0.5 to 1"},
    {kGood, "auto_batch:\n  budget_share: ^0\n", "above 0"},
    {kGood, "auto_batch:\n  max_scale: ^0.5\n", "at least 1"},
    {kGood, "auto_batch:\n  max_scale: ^any\n", "number"},
    {kGood, "checkpoint:\n  budget: ^3 %\n", "number"},
    {kGood, "schedule:\n  factor: ^2\n", "from 0 to 1"},
    // words
    {kGood, "train:\n  deterministic: ^yes\n", "true or false"},
    {kGood, "train:\n  deterministic: ^no\n", "true or false"},
    {kGood, "train:\n  deterministic: ^on\n", "true or false"},
    {kGood, "train:\n  deterministic: ^True\n", "true or false"},
    {kGood, "train:\n  deterministic: ^TRUE\n", "true or false"},
    {kGood, "train:\n  deterministic: ^1\n", "true or false"},
    {kGood, "train:\n  deterministic: ^y\n", "true or false"},
    {kGood, "train:\n  deterministic: ^~\n", "true or false"},
    {kGood, "train:\n  precision: ^fp8\n", "fp32, tf32, fp16, bf16"},
    {kGood, "train:\n  precision: ^BF16\n", "nearest: bf16"},
    {kGood, "train:\n  precision: ^bp16\n", "nearest"},
    {kGood, "train:\n  device: ^gpu\n", "auto, cpu, cuda"},
    {kGood, "train:\n  device: ^cuda:0\n", "nearest: cuda"},
    {kGood, "train:\n  capture: ^always\n", "auto, on, off"},
    {kGood, "train:\n  on_nan: ^ignore\n", "skip, stop"},
    {kGood, "optimizer:\n  name: ^adamW\n", "nearest: adamw"},
    {kGood, "optimizer:\n  name: ^rmsprop\n", "sgd, adam, adamw"},
    {kGood, "schedule:\n  name: ^cosin\n", "nearest: cosine"},
    {kGood, "auto_batch:\n  policy: ^goodput\n", "throughput, hold"},
    {kGood, "storage:\n  on_full: ^die\n", "pause, stop"},
    {kGood, "log:\n  level: ^warn\n", "warning"},
    {kNone, "model:\n  name: ^alexnet\n", "resnet18"},
    {kNone, "model:\n  name: ^resnet-18\n", "nearest: resnet18"},
    {kNone, "model:\n  name: ^\"\"\n", "found \"\""},
    {kNone, "data:\n  name: ^fashion-mnist\n", "nearest: fashion_mnist"},
    {kNone, "data:\n  name: ^imagenet\n", "image_folder"},
    {kNone, "model:\n  name: ^torch.nn.Linear\n", "one of"},
    {kNone, "model:\n  name: ^!python/object:os.system x\n", "tags"},
    // bytes, times, periods
    {kGood, "loader:\n  max_bytes: ^3 furlongs\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^-3 MiB\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^MiB\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^3 mib\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^3 M\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^1e30 GiB\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^010 MiB\n", "octal"},
    {kGood, "loader:\n  max_bytes: ^0x10\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^auto\n", "512 MiB"},
    {kGood, "loader:\n  max_bytes: ^1,5 GiB\n", "512 MiB"},
    {kGood, "train:\n  max_time: ^3 parsecs\n", "30 min"},
    {kGood, "train:\n  max_time: ^-3 s\n", "30 min"},
    {kGood, "train:\n  max_time: ^min\n", "30 min"},
    {kGood, "train:\n  max_time: ^1:30\n", "30 min"},
    {kGood, "train:\n  max_time: ^1e300 s\n", "30 min"},
    {kGood, "train:\n  max_time: ^200 years\n", "30 min"},
    {kGood, "train:\n  max_time: ^5 m\n", "minutes are min"},
    {kGood, "train:\n  max_time: ^08 s\n", "octal"},
    {kGood, "evaluation:\n  every: ^3 moons\n", "epochs"},
    {kGood, "evaluation:\n  every: ^500\n", "write the unit"},
    {kGood, "evaluation:\n  every: ^-1 epochs\n", "epochs"},
    {kGood, "evaluation:\n  every: ^epochs\n", "epochs"},
    {kGood, "evaluation:\n  every: ^0.5 steps\n", "whole"},
    {kGood, "evaluation:\n  every: ^1.5 samples\n", "whole"},
    {kGood, "evaluation:\n  every: ^10 min\n", "depend on the machine"},
    {kGood, "evaluation:\n  every: ^101 %\n", "100 %"},
    {kGood, "evaluation:\n  every: ^1e300 epochs\n", "epochs"},
    {kGood, "evaluation:\n  every: ^1 epoch 2 steps\n", "epochs"},
    {kGood, "evaluation:\n  every: ^010 steps\n", "octal"},
    {kGood, "schedule:\n  warmup: ^3 min\n", "depend on the machine"},
    {kGood, "schedule:\n  warmup: ^auto\n", "or never"},
    {kGood, "schedule:\n  decay: ^5 s\n", "depend on the machine"},
    {kGood, "log:\n  interval: ^never\n", "or auto"},
    {kGood, "log:\n  interval: ^0 steps\n", "or auto"},
    {kGood, "checkpoint:\n  every: ^sometimes\n", "10 min, auto or never"},
    // lists
    {kGood, "optimizer:\n  betas: ^[0.9]\n", "two numbers"},
    {kGood, "optimizer:\n  betas: ^0.9\n", "two numbers"},
    {kGood, "optimizer:\n  betas: ^[0.9, 1]\n", "below 1"},
    {kGood, "optimizer:\n  betas: ^[-0.1, 0.9]\n", "from 0"},
    {kGood, "optimizer:\n  betas: ^[0.9, x]\n", "number"},
    {kGood, "optimizer:\n  betas: ^[]\n", "two numbers"},
    {kGood, "schedule:\n  milestones: ^[0.75, 0.5]\n", "rise"},
    {kGood, "schedule:\n  milestones: ^[0.5, 0.5]\n", "rise"},
    {kGood, "schedule:\n  milestones: ^[30, 60]\n", "from 0 to 1"},
    {kNone, "model:\n  name: mlp\n  hidden: ^[3, 0]\ndata:\n  name: mnist\n", "at least 1"},
    {kNone, "model:\n  name: mlp\n  hidden: ^[3.5]\ndata:\n  name: mnist\n", "integer"},
    {kNone, "model:\n  name: mlp\n  hidden: ^[1e9]\ndata:\n  name: mnist\n", "at most"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  mean: ^[0.5]\n", "one per channel"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  mean: [0.5]\n  deviation: ^[0]\n", "above 0"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  deviation: ^[0.5]\n", "one per channel"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  mean: ^[1, 2, 3, 4, 5]\n  deviation: [1, 2, 3, 4, 5]\n", "one per channel"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  mean: [0.1]\n  deviation: ^[-1]\n", "above 0"},
    // model and data
    {kNone, "model:\n  name: mlp\n", "data.name is missing"},
    {kNone, "data:\n  name: mnist\n", "model.name is missing"},
    {kNone, "model:\n  name: mlp\n  attention_dropout: ^0.1\ndata:\n  name: mnist\n", "fused"},
    {kNone, "model:\n  name: mlp\n  dropout: ^1\ndata:\n  name: mnist\n", "from 0 to 0.99"},
    {kNone, "model:\n  name: mlp\n  layers: ^0\ndata:\n  name: mnist\n", "from 1 to 4096"},
    {kNone, "model:\n  name: mlp\n  layers: ^1e9\ndata:\n  name: mnist\n", "from 1 to 4096"},
    {kNone, "model:\n  name: mlp\n  heads: ^0\ndata:\n  name: mnist\n", "from 1"},
    {kNone, "model:\n  name: mlp\n  stem: ^mnist\ndata:\n  name: mnist\n", "auto, cifar, imagenet"},
    {kNone, "model:\n  name: mlp\n  recompute: ^all\ndata:\n  name: mnist\n", "none, blocks"},
    {kNone, "model:\n  name: mlp\n  vocabulary: ^-1\ndata:\n  name: mnist\n", "at least 0"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  image_size: ^0\n", "from 1 to 16384"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  channels: ^5\n", "from 1 to 4"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  crop_pad: ^65\n", "from 0 to 64"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  augment: ^maybe\n", "worker, none"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  transfer: ^fp16\n", "uint8"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  on_error: ^skip\n", "stop, replace"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  flip: ^0.5\n", "true or false"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  mask_probability: ^2\n", "from 0 to 1"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  cache_bytes: ^lots\n", "512 MiB"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  validation_share: ^0.95\n", "from 0 to 0.9"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  cost: ^5 m\n", "minutes are min"},
    // YAML
    {kGood, "run:\n  out: ^\"runs/a\\0b\"\n", "zero character"},
    {kNone, "model:\n  name: mlp\ndata:\n  name: mnist\n  train: ^[x, \"a\\0b\"]\n", "zero character"},
    {kGood, "train:\n batch: ^3\n   epochs: 4\n", "next line"},
    {kGood, "train:\n  batch: 3\n ^epochs: 4\n", ""},
    {kGood, "train: ^{batch: 3\n", "never closed"},
    {kGood, "train: {batch: 3^]\n", ""},
    {kGood, "optimizer:\n  betas: ^[0.9, 0.99\n", "never closed"},
    {kGood, "run:\n  name: ^'abc\n", "never closed"},
    {kGood, "run:\n  name: ^\"abc\n", "never closed"},
    {kGood, "run:\n  name: ^\"abc\\\"\n", "never closed"},
    {kGood, "run:\n  name: ^'abc''\n", "never closed"},
    {kGood, "run:\n  name: ^'a\n    b'\n", "never closed"},
    {kGood, "run:\n  name: ^\"a\n    b\"\n", "never closed"},
    {kGood, "run:\n  name: ^\"a\\\n    b\"\n", "never closed"},
    {kGood, "run: {name: ^'abc}\n", "never closed"},
    {kGood, "run:\n  name: \"a\" ^b\n", ""},
    {kGood, "run:\n  name: [a] ^b\n", ""},
    {kGood, "run:\n  name: ^a\n    b\n", "next line"},
    {kGood, "run:\n  name: ^|\n    block\n", "blocks of text"},
    {kGood, "run:\n  name: ^>-\n    block\n", "blocks of text"},
    {kGood, "run:\n  name: ^&a x\n", "anchors"},
    {kGood, "run:\n  name: ^*a\n", "anchors"},
    {kGood, "run: ^&a\n  name: x\n", "anchors"},
    {kGood, "run: {name: ^&a x, out: *a}\n", "anchors"},
    {kGood, "optimizer:\n  betas: [^&b 0.9, *b]\n", "anchors"},
    {kGood, "run:\n  name: ^&a 'x'\n", "anchors"},
    {kGood, "run:\n  name: ^!!str x\n", "tags"},
    {kGood, "run:\n  name: ^!x y\n", "tags"},
    {kGood, "run:\n  name: ^! x\n", "tags"},
    {kGood, "run:\n  name: ^!!binary aGk=\n", "tags"},
    {kGood, "run: ^!!map\n  name: x\n", "tags"},
    {kGood, "optimizer:\n  betas: ^!!seq [0.9, 0.99]\n", "tags"},
    {kGood, "run:\n  name: ^!include other.yaml\n", "tags"},
    {kGood, "run:\n  name: ^!env HOME\n", "tags"},
    {kGood, "^---\nmodel:\n  name: cnn\n", "one"},
    {kGood, "...\n^more: 1\n", "one"},
    {kNone, "^%YAML 1.1\n---\nmodel:\n  name: mlp\n", "directives"},
    {kNone, "^%TAG ! x\n---\nmodel:\n  name: mlp\n", "directives"},
    {kGood, "run:\n  name: ^@x\n", "put it in quotes"},
    {kGood, "run:\n  name: ^`x`\n", "put it in quotes"},
    {kGood, "run:\n  name: ^%x\n", "put it in quotes"},
    {kGood, "run:\n  name: a^: b\n", ""},
    {kGood, "train:\n  ^batch 3\n", "found a value"},
    // bytes of the file
    {kGood, "run:\n  name: ^\"a\\_b\"\n", "makes no UTF-8"},
    {kGood, "run:\n  name: ^\"a\\Nb\"\n", "makes no UTF-8"},
    {kGood, "run:\n  name: \"\\^\xc3\xbc\"\n", "not YAML: unknown escape"},
    {kGood, "train:\n^\tbatch: 3\n", "tab"},
    {kGood, "train:\n  batch: 3^\t# three\n", "tab"},
    {kGood, "train:\n  batch:^\t3\n", "tab"},
    {kGood, "# ^\t\n", "tab"},
    {kGood, "run:\n  name: a^\x00""b\n"s, "code 0"},
    {kGood, "run:\n  name: a # ^\x04 hides the rest\n", "code 4"},
    {kGood, "run:\n  name: ^\x1b[31mred\n", "code 27"},
    {kGood, "run:\n  name: a^\x7f\n", "code 127"},
    {kGood, "# ^\r train: {batch: 3}\n", "carriage return"},
    {kGood, "# end^\r", "carriage return"},
    {kGood, "run:\n  name: ^\xff\xfe\n", "UTF-8"},
    {kGood, "run:\n  name: ^\xc0\xaf\n", "UTF-8"},
    {kGood, "run:\n  name: ^\xe0\x80\xaf\n", "UTF-8"},
    {kGood, "run:\n  name: ^\xed\xa0\x80\n", "UTF-8"},
    {kGood, "run:\n  name: ^\xf4\x90\x80\x80\n", "UTF-8"},
    {kGood, "run:\n  name: ^\x80\n", "UTF-8"},
    {kGood, "# Gr\xc3\xbc^\xdf\n", "UTF-8"},
    {kGood, "# cut^\xe2\x82", "UTF-8"},
    {kNone, "^\xff\xfem\x00o\x00"s, "UTF-8"},
    {kGood, "run:\n  name: a^\xe2\x80\xae""b\n", "U+202E"},
    {kGood, "# ^\xe2\x81\xa6\n", "U+2066"},
    {kGood, "train:\n  batch:^\xc2\xa0""3\n", "U+A0"},
    {kGood, "# ^\xe2\x80\xa8train: {batch: 3}\n", "U+2028"},
    {kGood, "# ^\xc2\x85\n", "U+85"},
    {kGood, "run:\n  name: ^\xef\xbb\xbfx\n", "U+FEFF"},
    {kGood, "run:\n  name: a^\xe2\x80\x8b\n", "U+200B"},
    {kGood, "# gr\xc3\xbcn\nrun: {name: gr\xc3\xbcn, ^\xc3\xbc: 1}\n", "unknown key"},
  };
  // clang-format on
  return all;
}

struct Marked {
  std::string text;
  std::string place;  // "c.yaml:line:column: ", columns in characters
};

Marked unmark(const Broken& broken) {
  Marked m;
  m.text = broken.base == kGood ? "model:\n  name: mlp\ndata:\n  name: mnist\n" + broken.text
                                : broken.text;
  const std::size_t at = m.text.find('^');
  if (at == std::string::npos) {
    m.place = "c.yaml: ";
    return m;
  }
  m.text.erase(at, 1);
  int line = 1;
  int column = 1;
  for (std::size_t i = 0; i < at; ++i) {
    if (m.text[i] == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(m.text[i]) & 0xC0) != 0x80) {
      ++column;
    }
  }
  m.place = format("c.yaml:{}:{}: ", line, column);
  return m;
}

std::string error_of(const std::string& text) {
  try {
    (void)parse_config(text, "c.yaml");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(ConfigBroken, EachIsRefusedAtItsPlaceWithAHint) {
  EXPECT_GE(table().size(), 300u);
  for (const Broken& broken : table()) {
    const Marked m = unmark(broken);
    const std::string e = error_of(m.text);
    EXPECT_TRUE(e.starts_with(m.place)) << m.text << "\n-> " << e << "\n!= " << m.place;
    EXPECT_NE(e.find(broken.hint), std::string::npos)
        << m.text << "\n-> " << e << "\nno " << broken.hint;
    EXPECT_LT(e.size(), 400u) << e;
    for (const char c : e) {
      EXPECT_TRUE(c >= 0x20 && c < 0x7F)
          << "byte " << int(c) << " of a file reached a terminal: " << e;
    }
  }
}

// What would be valid without the damage: the table shows damage, not a base that is broken anyway.
TEST(ConfigBroken, TheBaseIsWhole) {
  EXPECT_EQ(error_of("model:\n  name: mlp\ndata:\n  name: mnist\n"), "");
}

// The same texts, cut at every byte and with every byte of them changed, never end otherwise than
// in a configuration or a ConfigError.
TEST(ConfigBroken, CutAndChangedTextsAreReadOrRefused) {
  int refused = 0;
  int read = 0;
  for (const Broken& broken : table()) {
    const std::string text = unmark(broken).text;
    for (std::size_t i = 0; i < text.size(); i += 3) {
      std::string changed = text;
      changed[i] = "\"'[]{}:-,#&*!|>%@\n\r\t \x80"[i % 23];
      for (const std::string& t : {text.substr(0, i), changed}) {
        try {
          (void)parse_config(t, "c.yaml");
          ++read;
        } catch (const ConfigError&) {
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 0);
}

struct Bomb {
  const char* what;
  std::string text;
};

std::string repeated(const std::string& piece, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += piece;
  }
  return all;
}

TEST(ConfigBroken, BombsAreRefusedInAFewWords) {
  std::string laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'z'; ++c) {
    laughs += format("{}: &{} [*{}, *{}, *{}, *{}]\n", c, c, char(c - 1), char(c - 1), char(c - 1),
                     char(c - 1));
  }
  std::string steps;
  for (int i = 0; i < 1000; ++i) {
    steps += std::string(std::size_t(i), ' ') + "a:\n";
  }
  const std::vector<Bomb> bombs = {
      {"brackets", "model: " + std::string(100'000, '[')},
      {"closed brackets", "model: " + std::string(100'000, '[') + std::string(100'000, ']')},
      {"braces", "model: " + repeated("{a: ", 100'000)},
      {"dashes", "model:\n  " + repeated("- ", 100'000) + "x\n"},
      {"question marks", repeated("? ", 100'000) + "x\n"},
      {"steps", steps},
      {"aliases", laughs},
      {"cycle", "model: &m {name: *m}\n"},
      {"digits", "model:\n  name: mlp\n  layers: " + std::string(100'000, '9') + "\n"},
      {"fraction", "model:\n  name: mlp\n  dropout: 0." + std::string(100'000, '9') + "e9\n"},
      {"key", std::string(500'000, 'k') + ": 1\n"},
      {"key of a section", "model:\n  " + std::string(500'000, 'k') + ": 1\n"},
      {"value", "model:\n  name: " + std::string(500'000, 'k') + "\n"},
      {"list", "model:\n  name: mlp\n  hidden: [" + repeated("1, ", 150'000) + "1]\n"},
      {"long list", "model:\n  name: mlp\n  hidden: [" + repeated("1, ", 50'000) + "1]\n"},
      {"sections", repeated("model: {}\n", 50'000)},
      {"documents", repeated("---\n", 200'000)},
      {"comments", repeated("#\n", 500'000)},
      {"colons", repeated(": ", 100'000)},
      {"bytes", std::string((1u << 20) + 1, '#')},
      {"quotes", "model: " + repeated("\"", 100'000)},
      {"exclamation marks", "model: " + repeated("!", 100'000)}};
  for (const Bomb& bomb : bombs) {
    const std::string e = error_of(bomb.text);
    EXPECT_TRUE(e.starts_with("c.yaml")) << bomb.what << ": " << e.substr(0, 500);
    EXPECT_LT(e.size(), 600u) << bomb.what << ": " << e.substr(0, 500);
  }
}

TEST(ConfigBroken, OverridesAreRefusedAlike) {
  const std::string good = "model:\n  name: mlp\ndata:\n  name: mnist\n";
  struct Case {
    std::string set, hint;
  };
  const std::vector<Case> cases = {{"", "key.path=value"},
                                   {"=", "key.path=value"},
                                   {"=3", "key.path=value"},
                                   {"train.batch", "key.path=value"},
                                   {"batch=3", "nearest: train.batch"},
                                   {"train.bacth=3", "nearest: train.batch"},
                                   {"train.batch =3", "nearest: train.batch"},
                                   {"train.batch= 3", "integer"},
                                   {"train.batch=010", "octal"},
                                   {"train.batch=3 4", "separators"},
                                   {"train.batch=[3]", "found a list"},
                                   {"train.batch=\"3\"", "leave the quotes out"},
                                   {"train.batch={a: 3}", "found a section"},
                                   {"model.name=", "found nothing"},
                                   {"model.hidden=[3,", "never closed"},
                                   {"model.hidden=[3] 4", "one"},
                                   {"model.hidden=[[3]]", "a list in a list"},
                                   {"model.hidden=[&a 3, *a]", "anchors"},
                                   {"model.hidden=" + std::string(100'000, '['), "never closed"},
                                   {"run.name='a", "never closed"},
                                   {"run.name=\"a\" b", "one"},
                                   {"run.name=a\nb", "several lines"},
                                   {"run.name=a\tb", "tab"},
                                   {"run.name=\x1b[31m", "code 27"},
                                   {"run.name=\xff", "UTF-8"},
                                   {"run.name=\xe2\x80\xae", "U+202E"},
                                   {"schedule.warmup=10 min", "depend on the machine"},
                                   {std::string(100'000, 'k') + "=1", "unknown key"},
                                   {"train.batch=" + std::string(2u << 20, '1'), "bytes"}};
  for (const Case& c : cases) {
    std::string e;
    try {
      (void)parse_config(good, "c.yaml", std::vector<std::string>{c.set});
    } catch (const ConfigError& error) {
      e = error.what();
    }
    EXPECT_TRUE(e.starts_with("--set")) << c.set.substr(0, 100) << " -> " << e.substr(0, 500);
    EXPECT_NE(e.find(c.hint), std::string::npos)
        << c.set.substr(0, 100) << " -> " << e.substr(0, 500);
    EXPECT_LT(e.size(), 500u);
  }
}

}  // namespace
}  // namespace penstock::io
