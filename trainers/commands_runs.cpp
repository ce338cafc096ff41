// eval, export, runs, compare, report: what works on runs that exist.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>

#include "framework/core/log.h"
#include "framework/io/checkpoint.h"
#include "framework/io/files.h"
#include "framework/io/journal.h"
#include "framework/io/json.h"
#include "framework/measure/report.h"
#include "framework/measure/text_file.h"
#include "trainers/commands.h"
#include "trainers/device.h"
#include "trainers/evaluate.h"
#include "trainers/run_folder.h"
#include "trainers/run_state.h"

namespace penstock::trainers {
namespace {

namespace fs = std::filesystem;

// The checkpoint that was named, else the newest of the run folder. Changes nothing on disk.
io::Checkpoint checkpoint_of(const Arguments& a, const io::Config& config) {
  if (!a.checkpoint.empty()) {
    return io::Checkpoint(a.checkpoint);
  }
  if (config.run.out.empty()) {
    throw ConfigError(format("{}: which checkpoint? Give --checkpoint FOLDER, or --out with the run's folder",
                             a.command));
  }
  const std::string folder = config.run.out + "/checkpoints";
  if (!io::is_folder(folder, io::Links::kFollow)) {
    throw StorageError(format("{}: there are no checkpoints", folder));
  }
  const io::CheckpointScan scan = io::scan_checkpoints(folder);
  if (scan.valid.empty()) {
    throw StorageError(format("{}: there is no valid checkpoint", folder));
  }
  return io::Checkpoint(scan.valid.back().path);
}

StepOptions evaluation_options(const Setup& setup, i64 batch) {
  StepOptions options = step_options(setup, setup.device, batch);
  options.training = false;
  options.capture = false;
  return options;
}

struct RunFacts {
  std::string folder;
  io::Json summary;
};

std::vector<RunFacts> find_runs(const std::string& root) {
  std::vector<RunFacts> all;
  if (!io::is_folder(root, io::Links::kFollow)) {
    throw StorageError(format("{}: there is no such folder", root));
  }
  for (const std::string& name : io::list_folder(root)) {
    const std::string folder = root + "/" + name;
    if (!io::is_folder(folder, io::Links::kFollow)) {
      continue;
    }
    try {
      if (auto summary = read_summary(folder)) {
        all.push_back({folder, std::move(*summary)});
      } else if (fs::exists(folder + "/config.resolved.yaml")) {
        all.push_back({folder, io::Json::object()});
      }
    } catch (const Error& e) {
      log::warning("{}", e.what());
    }
  }
  return all;
}

std::string cell_of(const io::Json& j, const char* key, double scale = 1, const char* spec = "{:.4g}") {
  const io::Json* v = j.at(key);
  if (v == nullptr) {
    return "";
  }
  if (const auto t = v->text()) {
    return *t;
  }
  const auto n = v->number();
  return n ? format(spec, *n * scale) : "";
}

io::Config config_in(const std::string& folder) {
  return io::load_config(folder + "/config.resolved.yaml");
}

}  // namespace

ExitCode run_eval(const Arguments& a) {
  const io::Config config = config_of(a);
  const Setup setup = make_setup(config);
  apply_process_settings(setup);
  const io::Checkpoint checkpoint = checkpoint_of(a, config);
  const i64 batch = config.evaluation.batch > 0 ? config.evaluation.batch : config.train.batch;
  StepRunner runner(setup.model, evaluation_options(setup, batch));
  load_model(checkpoint, runner);
  const auto e = evaluate(setup, runner, {.batch = batch, .samples = config.evaluation.samples, .workers = 1});
  io::Json j = io::Json::object();
  j.set("checkpoint", checkpoint.path()).set("loss", e->loss).set("accuracy", e->accuracy);
  j.set("samples", e->samples).set("seconds", e->seconds);
  if (a.json) {
    std::cout << j.dump(true) << "\n";
  } else {
    std::cout << format("{}: loss {:.4f}{}, {} samples in {}\n", checkpoint.path(), e->loss,
                        e->accuracy ? format(", accuracy {:.2f} %", 100 * *e->accuracy) : "", e->samples,
                        seconds_text(e->seconds));
  }
  return ExitCode::kDone;
}

ExitCode run_export(const Arguments& a) {
  const io::Config config = config_of(a);
  const Setup setup = make_setup(config);
  const io::Checkpoint checkpoint = checkpoint_of(a, config);
  StepRunner runner(setup.model, evaluation_options(setup, 1));
  load_model(checkpoint, runner);
  const auto tensors = runner.model().public_tensors();
  io::save_weights(a.to, tensors, {{"format", "pt"}, {"model", setup.model.name}});
  std::cout << format("{}: {} tensors of {} in the public layout\n", a.to, tensors.size(), setup.model.name);
  return ExitCode::kDone;
}

ExitCode run_runs(const Arguments& a) {
  const std::string root = a.runs.empty() ? "runs" : a.runs.front();
  const std::vector<RunFacts> runs = find_runs(root);
  if (a.json) {
    io::Json all = io::Json::array();
    for (const RunFacts& r : runs) {
      all.push(io::Json(io::Json::object().set("folder", r.folder).set("summary", r.summary)));
    }
    std::cout << all.dump(true) << "\n";
    return ExitCode::kDone;
  }
  using measure::Align;
  measure::TextTable table{.columns = {{"run", Align::kLeft},
                                       {"model", Align::kLeft},
                                       {"status", Align::kLeft},
                                       {"steps"},
                                       {"best"},
                                       {"samples/s"},
                                       {"batch"},
                                       {"limit", Align::kLeft},
                                       {"seconds"}},
                           .rows = {}};
  for (const RunFacts& r : runs) {
    const bool ended = r.summary.find("status") != nullptr;
    table.rows.push_back({r.folder, cell_of(r.summary, "model"), ended ? cell_of(r.summary, "status") : "running or killed",
                          cell_of(r.summary, "steps"), cell_of(r.summary, "best"),
                          cell_of(r.summary, "samples_per_second"), cell_of(r.summary, "batch"),
                          cell_of(r.summary, "verdict.limit"), cell_of(r.summary, "seconds")});
  }
  std::cout << table.text();
  return ExitCode::kDone;
}

ExitCode run_compare(const Arguments& a) {
  if (a.runs.size() < 2) {
    throw ConfigError("compare: give two runs or more");
  }
  // Runs that differ in the seed only are one column: mean and spread.
  struct Group {
    io::Config config;
    std::vector<RunFacts> runs;
  };
  std::vector<Group> groups;
  for (const std::string& folder : a.runs) {
    auto summary = read_summary(folder);
    if (!summary) {
      throw DataError(format("{}: no summary.json; has the run ended?", folder));
    }
    io::Config config = config_in(folder);
    io::Config key = config;
    key.run = {};
    Group* home = nullptr;
    for (Group& g : groups) {
      io::Config other = g.config;
      other.run = {};
      if (io::differences(other, key).empty()) {
        home = &g;
      }
    }
    if (home == nullptr) {
      groups.push_back({config, {}});
      home = &groups.back();
    }
    home->runs.push_back({folder, std::move(*summary)});
  }
  using measure::Align;
  measure::TextTable table{.columns = {{"", Align::kLeft}}, .rows = {}};
  std::vector<std::string> names = {"run"};
  for (const Group& g : groups) {
    std::string name = g.runs[0].folder;
    if (g.runs.size() > 1) {
      name += format(" +{} seeds", g.runs.size() - 1);
    }
    table.columns.push_back({name});
  }
  // Configuration: only what differs.
  for (const std::string& key : io::config_keys()) {
    if (key.starts_with("run.")) {
      continue;
    }
    std::vector<std::string> row = {key};
    bool same = true;
    for (const Group& g : groups) {
      row.push_back(io::value_of(g.config, key));
      same = same && row.back() == row[1];
    }
    if (!same) {
      table.rows.push_back(std::move(row));
    }
  }
  const std::vector<std::pair<const char*, const char*>> metrics = {
      {"best", "best metric"},
      {"validation_loss", "validation loss"},
      {"train_loss", "training loss"},
      {"samples_per_second", "samples/s"},
      {"seconds", "seconds"},
      {"seconds_to_target", "seconds to target"},
      {"steps", "steps"},
      {"batch", "batch"},
      {"memory", "memory bytes"},
      {"verdict.limit", "limit"}};
  io::Json out = io::Json::array();
  for (const auto& [key, title] : metrics) {
    std::vector<std::string> row = {title};
    bool any = false;
    for (const Group& g : groups) {
      std::vector<double> values;
      std::string word;
      for (const RunFacts& r : g.runs) {
        const io::Json* v = r.summary.at(key);
        if (v == nullptr) {
          continue;
        }
        if (const auto n = v->number()) {
          values.push_back(*n);
        } else if (const auto t = v->text()) {
          word = *t;
        }
      }
      if (values.empty()) {
        row.push_back(word);
        any = any || !word.empty();
        continue;
      }
      any = true;
      double mean = 0;
      for (const double v : values) {
        mean += v / double(values.size());
      }
      double spread = 0;
      for (const double v : values) {
        spread += (v - mean) * (v - mean);
      }
      row.push_back(values.size() > 1
                        ? format("{:.5g} +- {:.2g}", mean, std::sqrt(spread / double(values.size() - 1)))
                        : format("{:.5g}", mean));
    }
    if (any) {
      table.rows.push_back(std::move(row));
    }
  }
  if (a.json) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      io::Json one = io::Json::object();
      io::Json folders = io::Json::array();
      for (const RunFacts& r : groups[g].runs) {
        folders.push(r.folder);
      }
      one.set("runs", std::move(folders));
      for (const auto& row : table.rows) {
        one.set(row[0], row[g + 1]);
      }
      out.push(std::move(one));
    }
    std::cout << out.dump(true) << "\n";
  } else {
    std::cout << table.text();
  }
  return ExitCode::kDone;
}

// Rebuilds the report from what the run's folder holds; every number there is as hostile as any file.
ExitCode run_report(const Arguments& a) {
  const std::string& folder = a.runs.front();
  measure::ReportData data;
  const io::Config config = config_in(folder);
  data.title = run_name(config);
  data.config = io::to_yaml(config);
  if (const auto summary = read_summary(folder)) {
    data.subtitle = cell_of(*summary, "model") + " on " + cell_of(*summary, "data") + ", " +
                    cell_of(*summary, "device");
    if (const io::Json* headline = summary->at("verdict.headline")) {
      data.summary.push_back(headline->text().value_or(""));
    }
    if (const io::Json* words = summary->at("auto_batch.words")) {
      data.summary.push_back(words->text().value_or(""));
    }
    for (const char* key : {"status", "steps", "seconds", "best", "samples_per_second", "precision"}) {
      data.facts.push_back({key, cell_of(*summary, key)});
    }
    measure::Curve curve;
    if (const io::Json* points = summary->at("auto_batch.points"); points != nullptr && points->items() != nullptr) {
      for (const io::Json& p : *points->items()) {
        const io::Json* batch = p.at("batch");
        const io::Json* rate = p.at("samples_per_second");
        const double b = batch != nullptr ? batch->number().value_or(0) : 0;
        if (rate != nullptr && rate->number() && b >= 1 && b < 1e9) {
          measure::CurvePoint point;
          point.batch = i64(b);
          point.samples_per_second = rate->number().value_or(0);
          curve.points.push_back(point);
        }
      }
      const io::Json* knee = summary->at("auto_batch.knee");
      if (knee != nullptr && knee->number()) {
        curve.knee = i64(*knee->number());
      }
      curve.name = cell_of(*summary, "precision");
      data.curves.push_back(curve);
    }
  }
  std::map<std::pair<std::string, std::string>, measure::ReportSeries> series;
  io::read_journal(folder + "/metrics.jsonl", {.superseded = false, .line = [&](std::string_view line) {
    io::Json j;
    try {
      j = io::Json::parse(line, folder + "/metrics.jsonl");
    } catch (const Error&) {
      return;
    }
    const auto number = [&](const char* key) {
      const io::Json* v = j.at(key);
      return v != nullptr ? v->number() : std::nullopt;
    };
    const auto position = number("position");
    if (!position) {
      return;
    }
    const auto add = [&](const char* plot, const char* name, const char* key) {
      if (const auto v = number(key)) {
        measure::ReportSeries& s = series[{plot, name}];
        s.plot = plot;
        s.name = name;
        s.samples.push_back(*position);
        s.values.push_back(*v);
      }
    };
    add("loss", "training", "loss");
    add("loss", "validation", "validation_loss");
    add("accuracy", "training", "accuracy");
    add("accuracy", "validation", "validation_accuracy");
    if (const auto wall = number("account.wall"); wall && *wall > 0) {
      measure::ReportInterval in;
      in.begin = number("seconds").value_or(0) - *wall;
      in.samples = i64(*position);
      in.account.wall = *wall;
      in.account.data_wait = number("account.data_wait").value_or(0);
      in.account.kernels = number("account.kernels").value_or(0);
      in.account.launch_gap = number("account.launch_gap").value_or(0);
      in.account.h2d_exposed = number("account.h2d_exposed").value_or(0);
      in.account.unaccounted = number("account.unaccounted").value_or(0);
      for (std::size_t k = 0; k < measure::kOtherKinds; ++k) {
        in.account.other[k] =
            number((std::string("account.other.") + measure::name_of(measure::OtherKind(k))).c_str()).value_or(0);
      }
      in.account.samples = i64(number("samples").value_or(0));
      in.account.steps = i64(number("steps").value_or(0));
      in.batch = i64(number("batch").value_or(0));
      in.accumulate = i64(number("accumulate").value_or(1));
      in.workers = int(number("workers").value_or(0));
      in.depth = int(number("depth").value_or(0));
      data.intervals.push_back(in);
    }
  }});
  for (auto& [key, s] : series) {
    data.series.push_back(std::move(s));
  }
  measure::write_whole_file(folder + "/report.html", measure::report_html(data));
  std::cout << folder << "/report.html\n";
  return ExitCode::kDone;
}

}  // namespace penstock::trainers
