#include "trainers/commands.h"

#include <map>

#include "framework/core/log.h"
#include "trainers/train.h"

namespace penstock::trainers {

io::Config config_of(const Arguments& a) {
  std::vector<std::string> overrides = a.set;
  if (a.auto_batch) {
    overrides.push_back("auto_batch.policy=" + *a.auto_batch);
  }
  io::Config config = io::load_config(a.config, overrides);
  if (a.out) {
    config.run.out = *a.out;
  }
  const std::map<std::string, log::Level> levels = {{"debug", log::Level::kDebug},
                                                    {"info", log::Level::kInfo},
                                                    {"warning", log::Level::kWarning},
                                                    {"error", log::Level::kError}};
  log::set_level(a.quiet     ? log::Level::kWarning
                 : a.verbose ? log::Level::kDebug
                             : levels.at(config.log.level));
  return config;
}

ExitCode run_train(const Arguments& a) {
  const io::Config config = config_of(a);
  return train(config, {.out = config.run.out, .resume = a.resume, .json = a.json, .quiet = a.quiet});
}

ExitCode run_command(const Arguments& a) {
  static const std::map<std::string, ExitCode (*)(const Arguments&)> commands = {
      {"train", run_train},     {"sweep", run_sweep},     {"plan", run_plan},
      {"profile", run_profile}, {"diagnose", run_diagnose}, {"bench", run_bench_loader},
      {"eval", run_eval},       {"export", run_export},   {"check", run_check},
      {"config", run_config},   {"runs", run_runs},       {"compare", run_compare},
      {"report", run_report},   {"info", run_info},       {"replay", run_replay},
  };
  return commands.at(a.command)(a);
}

}  // namespace penstock::trainers
