// One function per command; each returns what the process exits with.
#pragma once

#include "framework/core/check.h"
#include "framework/io/config.h"
#include "trainers/cli.h"

namespace penstock::trainers {

ExitCode run_command(const Arguments& arguments);

ExitCode run_train(const Arguments& arguments);
ExitCode run_sweep(const Arguments& arguments);
ExitCode run_plan(const Arguments& arguments);
ExitCode run_profile(const Arguments& arguments);
ExitCode run_diagnose(const Arguments& arguments);
ExitCode run_bench_loader(const Arguments& arguments);
ExitCode run_eval(const Arguments& arguments);
ExitCode run_export(const Arguments& arguments);
ExitCode run_check(const Arguments& arguments);
ExitCode run_config(const Arguments& arguments);
ExitCode run_runs(const Arguments& arguments);
ExitCode run_compare(const Arguments& arguments);
ExitCode run_report(const Arguments& arguments);
ExitCode run_info(const Arguments& arguments);
ExitCode run_replay(const Arguments& arguments);

// The configuration that the arguments name, with --set, --out and --auto-batch applied.
io::Config config_of(const Arguments& arguments);

}  // namespace penstock::trainers
