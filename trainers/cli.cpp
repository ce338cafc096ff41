#include "trainers/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "framework/core/check.h"
#include "trainers/version.h"

namespace penstock::trainers {
namespace {

// Edit distance; small words only.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string nearest(const std::string& word, const std::vector<std::string>& words) {
  std::string best;
  std::size_t least = 4;
  for (const std::string& w : words) {
    const std::size_t d = distance(word, w);
    if (d < least) {
      least = d;
      best = w;
    }
  }
  return best;
}

constexpr const char* kExamples = R"(Examples
  penstock train configs/fashion_mnist_cnn.yaml --auto-batch
  penstock train configs/gpt_char.yaml --set data.train=book.txt --set train.precision=bf16
  penstock train CONFIG.yaml --resume=auto --out runs/mine
  penstock sweep CONFIG.yaml            throughput and bandwidth at every batch
  penstock plan CONFIG.yaml             memory and speed, without computing anything
  penstock diagnose CONFIG.yaml         what limits it, and what each remedy would gain
  penstock check CONFIG.yaml --smoke    everything that can fail, before it does

Exit codes
  0 done · 1 internal · 2 usage or config · 3 data · 4 nothing fits in memory · 5 diverged
  6 storage · 7 device · 8 stalled · 130, 143 interrupted, state saved
)";

}  // namespace

std::optional<Arguments> parse_arguments(int argc, const char* const* argv) {
  Arguments a;
  CLI::App app{"Penstock trains models, measures what limits them, and tunes batch, workers and depth."};
  app.name("penstock");
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("penstock ") + kVersion);
  app.require_subcommand(0, 1);

  std::vector<std::string> names;
  const auto command = [&](const std::string& name, const std::string& help) {
    CLI::App* c = app.add_subcommand(name, help);
    c->add_flag("--json", a.json, "Machine-readable result on stdout, errors too");
    c->add_flag("-q,--quiet", a.quiet, "Warnings and errors only");
    c->add_flag("-v,--verbose", a.verbose, "Details of every decision");
    c->allow_extras(false);
    names.push_back(name);
    return c;
  };
  const auto with_config = [&](CLI::App* c) {
    c->add_option("config", a.config, "Configuration file")->required();
    c->add_option("--set", a.set, "Sets one key: --set train.batch=64")
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    c->add_option("--out", a.out, "Folder of the run");
    return c;
  };
  std::string resume;
  std::string auto_batch;
  CLI::App* train = with_config(command("train", "Train a model"));
  CLI::Option* resume_option =
      train->add_option("--resume", resume, "Go on from the newest checkpoint; =auto starts when there is none")
          ->expected(0, 1);
  CLI::Option* batch_option =
      train->add_option("--auto-batch", auto_batch,
                        "Measure, take the batch at the knee, keep tuning: =throughput (default) or =hold")
          ->expected(0, 1);
  with_config(command("sweep", "Throughput, bandwidth and memory at every batch"));
  CLI::App* plan = with_config(command("plan", "Memory, FLOPs, bytes and predicted speed; computes nothing"));
  plan->add_option("--device", a.device, "A device by name, e.g. h200; default: this one");
  plan->add_option("--ranks", a.ranks, "Number of ranks of a data-parallel run")->check(CLI::PositiveNumber);
  CLI::App* profile = with_config(command("profile", "Time, bytes and FLOPs of every op"));
  profile->add_option("--sort", a.sort, "time, bytes, calls or name")
      ->check(CLI::IsMember({"time", "bytes", "calls", "name"}));
  with_config(command("diagnose", "What limits the run, with evidence"));
  CLI::App* bench = with_config(command("bench", "Benchmarks of one part: bench loader CONFIG.yaml"));
  // "loader" comes before the file.
  bench->remove_option(bench->get_option("config"));
  bench->add_option("part", a.bench, "loader")->required()->check(CLI::IsMember({"loader"}));
  bench->add_option("config", a.config, "Configuration file")->required();
  CLI::App* eval = with_config(command("eval", "Evaluate a checkpoint"));
  eval->add_option("--checkpoint", a.checkpoint, "Checkpoint folder; default: the newest of --out");
  CLI::App* exporting = with_config(command("export", "Write weights in the public layout"));
  exporting->add_option("--checkpoint", a.checkpoint, "Checkpoint folder; default: the newest of --out");
  exporting->add_option("--to", a.to, "The file to write, e.g. model.safetensors")->required();
  CLI::App* check = with_config(command("check", "All that can be known before the first step"));
  check->add_flag("--smoke", a.smoke, "Also two steps, an evaluation, a save and a resume");
  command("config", "The commented reference of all keys");
  CLI::App* runs = command("runs", "Runs under a folder");
  runs->add_option("folder", a.runs, "Folder; default: runs");
  command("compare", "Differences between runs")->add_option("run", a.runs, "Run folders")->required();
  command("report", "Write report.html of a run again")->add_option("run", a.runs, "Run folder")->required()->expected(1);
  CLI::App* info = command("info", "Devices, libraries, limits, counter sources");
  info->add_flag("--measure", a.measure, "Also measure the ceilings");
  command("replay", "Reproduce the decisions of a log")
      ->add_option("log", a.runs, "decisions.jsonl")->required()->expected(1);

  // CLI11 does not name a word that it takes for no command, nor suggest one.
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.empty() || word[0] == '-') {
      continue;
    }
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      const std::string near = nearest(word, names);
      throw ConfigError(format("penstock: unknown command \"{}\"{}; see penstock --help", word,
                               near.empty() ? "" : format("; nearest: {}", near)));
    }
    break;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    app.exit(e, std::cout, std::cerr);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    throw ConfigError(format("penstock: {}; see penstock --help", e.what()));
  }
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) {
    std::cout << app.help();
    return std::nullopt;
  }
  a.command = chosen.front()->get_name();
  if (resume_option->count() > 0) {
    a.resume = resume;
  }
  if (batch_option->count() > 0) {
    a.auto_batch = auto_batch.empty() ? "throughput" : auto_batch;
    if (*a.auto_batch != "throughput" && *a.auto_batch != "hold") {
      throw ConfigError(format("penstock: --auto-batch={}: expected throughput or hold; write "
                               "--auto-batch behind the configuration file",
                               *a.auto_batch));
    }
  }
  return a;
}

}  // namespace penstock::trainers
