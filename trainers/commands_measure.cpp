// sweep, profile, diagnose, bench: measurements.
#include <algorithm>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <unistd.h>

#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/io/files.h"
#include "framework/io/json.h"
#include "framework/io/signals.h"
#include "framework/measure/clock.h"
#include "framework/measure/text_file.h"
#include "trainers/auto_batch.h"
#include "trainers/commands.h"
#include "trainers/feed.h"
#include "trainers/run_folder.h"

namespace penstock::trainers {
namespace {

using measure::monotonic_seconds;

std::string folder_for(const io::Config& config, const char* what) {
  const std::string folder = config.run.out.empty() ? "runs/" + run_name(config) + "-" + what : config.run.out;
  make_folders(folder);
  return folder;
}

bool stop_requested() { return signals::stop_requested() != signals::Stop::kNone; }

StepInputs inputs_for(const Setup& setup, i64 samples) {
  StepInputs in;
  in.seed = std::uint64_t(setup.config.run.seed);
  in.momentum = float(setup.config.optimizer.momentum);
  in.beta1 = float(setup.config.optimizer.betas[0]);
  in.beta2 = float(setup.config.optimizer.betas[1]);
  in.inverse_targets = 1.0F / float(std::max<i64>(1, samples * std::max<i64>(1, setup.targets_per_sample)));
  return in;
}

// Steps with the real loader (or, `synthetic`, on one batch that stays on the device) for about
// `seconds`; the account of the steady part.
struct Measured {
  measure::StepAccount account;
  data::LoaderStats loader;
  std::optional<measure::Bandwidth> dram;
  double rate() const {
    const double training = account.wall - account.other_total();
    return training > 0 ? double(account.samples) / training : 0;
  }
};

Measured run_for(const Setup& setup, i64 batch, double seconds, bool synthetic, bool cold = false) {
  StepRunner runner(setup.model, step_options(setup, setup.device, batch + (setup.batch_norm ? 1 : 0)));
  data::LoaderOptions options = loader_options(setup);
  options.batch = batch;
  if (cold) {
    options.sampler.seed ^= 0x5DEECE66DULL;
  }
  data::Loader loader(setup.train, options);
  Feed feed(loader, runner,
            {.targets_per_sample = setup.targets_per_sample,
             .join_single = setup.batch_norm,
             .inputs = [&](i64 /*position*/, i64 samples) { return inputs_for(setup, samples); }});
  std::unique_ptr<measure::BandwidthMeter> meter;
  const measure::Ceilings ceilings = device_ceilings(setup.device, setup.threads);
  meter = make_meter(setup.device, &ceilings);
  meter->set_live(true);
  meter->start();
  const auto timeline =
      setup.device.is_cuda() ? measure::Account::Timeline::kDevice : measure::Account::Timeline::kHost;
  measure::Account account(timeline, monotonic_seconds());
  Measured m;
  const auto drain = [&](bool all) {
    for (const Feed::Wait& w : feed.take_waits()) {
      account.waited(w.span, w.split);
    }
    for (const StepRunner::Copy& c : runner.take_copies()) {
      account.copied(c.issued, c.span);
    }
    for (const StepOutcome& o : runner.outcomes(all)) {
      account.ran(o.busy, o.samples);
    }
  };
  bool loaded = false;
  const auto step = [&] {
    if (synthetic && loaded) {
      runner.run({.count = batch, .inputs = inputs_for(setup, batch)});
      runner.finish(batch, batch);
    } else {
      const Feed::Taken t = feed.step({.micro = batch});
      loaded = t.samples == batch;
    }
    runner.limit_ahead(8);
    drain(false);
  };
  double window = monotonic_seconds();
  // Warm: algorithms chosen, graphs captured, the ring's first fill used up.
  const double warm_end = window + std::min(2.0, 0.3 * seconds);
  for (int i = 0; i < 5 || monotonic_seconds() < warm_end; ++i) {
    step();
  }
  drain(true);
  account.close();
  runner.anchor();
  (void)feed.take_loader_stats();
  window = monotonic_seconds();
  for (int i = 0; i < 4 || monotonic_seconds() - window < seconds; ++i) {
    if (stop_requested()) {
      throw StepStopped();
    }
    step();
  }
  drain(true);
  m.account = account.close();
  m.loader = feed.take_loader_stats();
  m.dram = meter->over(window, monotonic_seconds());
  feed.drain();
  return m;
}

// Pages of the data files leave the page cache, as far as the system follows the advice.
void drop_page_cache(const io::Config& c) {
  const auto drop = [](const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      close(fd);
    }
  };
  std::vector<std::string> roots = c.data.train;
  if (!c.data.dir.empty()) {
    roots.push_back(c.data.dir);
  }
  for (const std::string& root : roots) {
    std::error_code error;
    if (std::filesystem::is_regular_file(root, error)) {
      drop(root);
      continue;
    }
    i64 files = 0;
    for (auto it = std::filesystem::recursive_directory_iterator(root, error);
         !error && it != std::filesystem::recursive_directory_iterator() && files < 2'000'000;
         it.increment(error), ++files) {
      if (it->is_regular_file(error)) {
        drop(it->path().string());
      }
    }
  }
}

}  // namespace

ExitCode run_sweep(const Arguments& a) {
  const io::Config config = config_of(a);
  const std::string folder = folder_for(config, "sweep");
  // fp32 and, where the device has them, the lower precisions.
  std::vector<std::string> precisions;
  if (io::origin_of(config, "train.precision") == "--set") {
    precisions = {config.train.precision};
  } else if (device_of(config).is_cuda()) {
    precisions = {"fp32", "tf32", "fp16", "bf16"};
  } else {
    precisions = {"fp32", "bf16"};
  }
  measure::ReportData report;
  report.title = run_name(config) + ": sweep";
  report.config = io::to_yaml(config);
  io::Json out = io::Json::array();
  for (const std::string& precision : precisions) {
    io::Config one = config;
    one.train.precision = precision;
    Setup setup;
    try {
      setup = make_setup(one);
    } catch (const ConfigError& e) {
      log::info("sweep: {} is left out: {}", precision, e.what());
      continue;
    }
    apply_process_settings(setup);
    report.subtitle = setup.model.name + " on " + one.data.name + ", " + device_name(setup.device);
    AutoBatch found;
    try {
      found = find_batch(setup, {.all = true, .stop = stop_requested, .activity = [&](const std::string& what) {
                                   log::info("sweep {}: {}", precision, what);
                                 }});
    } catch (const StepStopped&) {
      return signals::exit_code(signals::stop_requested());
    }
    for (measure::CurvePoint& p : found.curve.points) {
      p.memory_measured = std::nullopt;
    }
    report.curves.push_back(found.curve);
    std::string line;
    for (const char c : tuner::explain(found.probe) + "\n") {
      if (c != '\n') {
        line += c;
        continue;
      }
      if (!line.empty()) {
        report.summary.push_back(precision + ": " + line);
        log::info("sweep {}: {}", precision, line);
      }
      line.clear();
    }
    io::Json j = io::Json::object();
    j.set("precision", precision).set("knee", found.probe.knee).set("best", found.probe.best_batch);
    j.set("best_rate", found.probe.best_rate).set("half_batch", found.probe.fit.half_batch());
    j.set("doubling_knee", found.probe.doubling_knee).set("elastic_knee", found.probe.elastic_knee);
    j.set("largest_fitting", found.largest_fitting).set("supply", found.supply);
    io::Json points = io::Json::array();
    for (const tuner::ProbePoint& p : found.probe.points) {
      points.push(io::Json::object()
                      .set("batch", p.batch)
                      .set("samples_per_second", p.samples_per_second)
                      .set("standard_error", p.se)
                      .set("bound", p.bound > 0 ? io::Json(p.bound) : io::Json())
                      .set("dram_share", p.dram)
                      .set("planned_bytes", p.planned_bytes));
    }
    out.push(std::move(j.set("points", std::move(points))));
  }
  const std::string svg = measure::curve_svg(report.curves);
  if (!svg.empty()) {
    measure::write_whole_file(folder + "/curve.svg", svg);
  }
  measure::write_whole_file(folder + "/report.html", measure::report_html(report));
  measure::write_whole_file(folder + "/sweep.json", out.dump(true) + "\n");
  if (a.json) {
    std::cout << out.dump(true) << "\n";
    return ExitCode::kDone;
  }
  using measure::Align;
  measure::TextTable table{.columns = {{"precision", Align::kLeft},
                                       {"batch"},
                                       {"samples/s"},
                                       {"of best"},
                                       {"DRAM"},
                                       {"memory"}},
                           .rows = {}};
  for (const measure::Curve& curve : report.curves) {
    double best = 0;
    for (const measure::CurvePoint& p : curve.points) {
      best = std::max(best, p.samples_per_second);
    }
    for (const measure::CurvePoint& p : curve.points) {
      const bool knee = curve.knee && *curve.knee == p.batch;
      table.rows.push_back({curve.name, std::to_string(p.batch) + (knee ? " knee" : ""),
                            measure::count_cell(p.samples_per_second),
                            measure::percent_cell(best > 0 ? std::optional(p.samples_per_second / best) : std::nullopt),
                            measure::percent_cell(p.dram ? p.dram->share_of_achievable : std::nullopt),
                            measure::bytes_cell(p.memory_planned)});
    }
  }
  std::cout << table.text() << "see " << folder << "/report.html\n";
  return ExitCode::kDone;
}

ExitCode run_profile(const Arguments& a) {
  const io::Config config = config_of(a);
  Setup setup = make_setup(config);
  apply_process_settings(setup);
  const measure::Ceilings ceilings = device_ceilings(setup.device, setup.threads);
  const i64 batch = config.train.batch;
  StepOptions options = step_options(setup, setup.device, batch + (setup.batch_norm ? 1 : 0));
  options.capture = false;  // a captured step has no ops to time
  StepRunner runner(setup.model, options);
  data::LoaderOptions loader_opts = loader_options(setup);
  loader_opts.batch = batch;
  data::Loader loader(setup.train, loader_opts);
  Feed feed(loader, runner,
            {.targets_per_sample = setup.targets_per_sample,
             .join_single = setup.batch_norm,
             .inputs = [&](i64 /*position*/, i64 samples) { return inputs_for(setup, samples); }});
  for (int i = 0; i < 5; ++i) {
    feed.step({.micro = batch});
  }
  runner.outcomes(true);
  (void)runner.take_copies();
  measure::Profiler profiler(setup.device.is_cuda());
  profiler.start();
  const double begin = monotonic_seconds();
  for (int i = 0; i < 10 || (monotonic_seconds() - begin < 2 && i < 200); ++i) {
    profiler.begin_step();
    feed.step({.micro = batch});
    runner.outcomes(true);
    profiler.end_step();
  }
  profiler.stop();
  i64 sample_bytes = 0;
  for (const data::Field& f : setup.train->fields()) {
    sample_bytes += f.bytes();
  }
  for (const StepRunner::Copy& c : runner.take_copies()) {
    profiler.copied("input to device", double(batch * sample_bytes), c.span.length());
  }
  feed.drain();
  measure::Profile profile = profiler.result({.bytes_per_second = ceilings.bytes_per_second,
                                              .flops_per_second = matmul_ceiling(ceilings, setup.precision)});
  const std::string by = a.sort == "bytes"   ? "bytes"
                         : a.sort == "calls" ? "calls"
                         : a.sort == "name"  ? "name"
                                             : "time";
  profile.sort(*measure::profile_sort_named(by));
  if (a.json) {
    std::cout << profile.json() << "\n";
  } else {
    std::cout << profile.table().text() << profile.summary() << "\n";
  }
  return ExitCode::kDone;
}

ExitCode run_diagnose(const Arguments& a) {
  const io::Config config = config_of(a);
  const Setup setup = make_setup(config);
  apply_process_settings(setup);
  const i64 batch = config.train.batch;
  const double seconds = 3;
  Measured synthetic, cold, warm;
  try {
    log::info("diagnose: the step alone, on one batch that stays where it is");
    synthetic = run_for(setup, batch, seconds, true);
    log::info("diagnose: with the data, the page cache dropped for their files");
    drop_page_cache(config);
    cold = run_for(setup, batch, seconds, false, true);
    log::info("diagnose: with the data, warm");
    warm = run_for(setup, batch, seconds, false);
  } catch (const StepStopped&) {
    return signals::exit_code(signals::stop_requested());
  }
  const measure::Ceilings ceilings = device_ceilings(setup.device, setup.threads);
  const measure::StepCost cost = cost_of(setup, std::max<i64>(2, batch / 4), std::max<i64>(4, batch));
  measure::Situation s;
  s.account = warm.account;
  s.dram = warm.dram;
  s.flops_per_second = cost.flops(double(batch)) / double(batch) * warm.rate();
  s.flops_ceiling = matmul_ceiling(ceilings, setup.precision);
  s.fixed_bytes_share = cost.fixed_bytes_share(double(batch));
  s.end_to_end_per_synthetic = synthetic.rate() > 0 ? std::optional(warm.rate() / synthetic.rate()) : std::nullopt;
  // Elasticity from the step alone at this batch and twice it.
  if (2 * batch <= setup.train->size()) {
    try {
      const Measured twice = run_for(setup, 2 * batch, 1.5, true);
      if (twice.rate() > 0 && synthetic.rate() > 0) {
        const double t1 = double(batch) / synthetic.rate();
        const double t2 = 2.0 * double(batch) / twice.rate();
        s.elasticity = std::clamp((2 * t1 - t2) / t1, 0.0, 1.0);
      }
    } catch (const Error&) {
      // Twice the batch does not fit: no elasticity is known.
    }
  }
  s.settings = {.cuda = setup.device.is_cuda(),
                .batch = batch,
                .accumulate = config.train.accumulate,
                .workers = loader_options(setup).workers,
                .depth = loader_options(setup).depth,
                .io_concurrency = loader_options(setup).io_concurrency,
                .cache_bytes = config.data.cache_bytes,
                .precision = setup.precision,
                .capture = config.train.capture != "off" && setup.device.is_cuda(),
                .transfer_uint8 = true,
                .augment_on_device = true,  // bytes are normalised there; crops stay the worker's
                .recompute = config.model.recompute == "blocks",
                .most_workers = machine::cores()};
  if (warm.loader.samples > 0 && synthetic.rate() > 0) {
    const double service = warm.loader.service_seconds / double(warm.loader.samples);
    s.settings.wanted_workers = int(std::ceil(1.15 * service * synthetic.rate()));
  }
  const auto verdict = measure::judge(s);
  if (a.json) {
    io::Json j = io::Json::object();
    j.set("synthetic", synthetic.rate()).set("warm", warm.rate()).set("cold", cold.rate());
    j.set("verdict", verdict ? io::Json(verdict->name()) : io::Json());
    j.set("headline", verdict ? io::Json(verdict->headline) : io::Json());
    j.set("gain", verdict ? io::Json(verdict->gain) : io::Json());
    io::Json remedies = io::Json::array();
    if (verdict) {
      for (const measure::Remedy& r : verdict->remedies) {
        remedies.push(io::Json::object().set("key", r.key).set("value", r.value).set("gain", r.gain));
      }
    }
    j.set("remedies", std::move(remedies));
    j.set("unaccounted", warm.account.wall > 0 ? warm.account.unaccounted / warm.account.wall : 0.0);
    std::cout << j.dump(true) << "\n";
    return ExitCode::kDone;
  }
  using measure::Align;
  measure::TextTable table{.columns = {{"", Align::kLeft}, {"samples/s"}, {"account", Align::kLeft}}, .rows = {}};
  table.rows.push_back({"step alone", measure::count_cell(synthetic.rate()), measure::describe(synthetic.account)});
  table.rows.push_back({"cold data", measure::count_cell(cold.rate()), measure::describe(cold.account)});
  table.rows.push_back({"warm data", measure::count_cell(warm.rate()), measure::describe(warm.account)});
  std::cout << table.text() << "\n";
  if (verdict) {
    std::cout << verdict->name() << ": " << verdict->headline << "\n\n";
    std::cout << measure::evidence_table(*verdict).text() << "\n";
    std::cout << measure::alternatives_table(*verdict).text() << "\n";
    for (const measure::Remedy& r : verdict->remedies) {
      std::cout << format("try {}: {}   {}{}\n", r.key, r.value, r.why,
                          r.gain ? format(" (predicted gain {:.0f} %)", 100 * *r.gain) : "");
    }
    for (const std::string& advice : verdict->advice) {
      std::cout << "advice: " << advice << "\n";
    }
  }
  return ExitCode::kDone;
}

ExitCode run_bench_loader(const Arguments& a) {
  const io::Config config = config_of(a);
  const Setup setup = make_setup(config);
  const int cores = machine::cores();
  std::vector<int> workers = {0};
  for (int w = 1; w <= std::max(4, 2 * cores); w *= 2) {
    workers.push_back(w);
  }
  const std::vector<int> depths = {1, 2, 4};
  using measure::Align;
  measure::TextTable table{.columns = {{"workers"}, {"depth"}, {"samples/s"}, {"per CPU second"}, {"first batch"}},
                           .rows = {}};
  io::Json out = io::Json::array();
  for (const int w : workers) {
    for (const int d : depths) {
      if (stop_requested()) {
        return signals::exit_code(signals::stop_requested());
      }
      data::LoaderOptions o = loader_options(setup);
      o.workers = w;
      o.depth = d;
      o.pinned = false;
      const double begin = monotonic_seconds();
      data::Loader loader(setup.train, o);
      loader.release(loader.next(std::min(o.batch, loader.largest_batch())));
      const double first = monotonic_seconds() - begin;
      // What was loaded ahead does not count.
      for (int i = 0; i <= d; ++i) {
        loader.release(loader.next(std::min(o.batch, loader.largest_batch())));
      }
      (void)loader.take_stats();
      i64 samples = 0;
      const double from = monotonic_seconds();
      while (monotonic_seconds() - from < 0.5) {
        const data::Batch b = loader.next(std::min(o.batch, loader.largest_batch()));
        samples += b.count;
        loader.release(b);
      }
      const double rate = double(samples) / (monotonic_seconds() - from);
      const data::LoaderStats s = loader.take_stats();
      const double per_cpu = s.cpu_seconds > 0 ? double(s.samples) / s.cpu_seconds : 0;
      table.rows.push_back({std::to_string(w), std::to_string(d), measure::count_cell(rate),
                            measure::count_cell(per_cpu), measure::seconds_cell(first)});
      out.push(io::Json(io::Json::object()
                            .set("workers", w)
                            .set("depth", d)
                            .set("samples_per_second", rate)
                            .set("samples_per_cpu_second", per_cpu)
                            .set("first_batch_seconds", first)));
    }
  }
  std::cout << (a.json ? out.dump(true) + "\n" : table.text());
  return ExitCode::kDone;
}

}  // namespace penstock::trainers
