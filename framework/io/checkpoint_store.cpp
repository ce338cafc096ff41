#include "framework/io/checkpoint_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "framework/core/log.h"
#include "framework/io/signals.h"

namespace penstock::io {
namespace {

// Names that a save of this run uses before it is committed, and on the way out. They carry the
// run's identity, so that the next start knows which remains are its own.
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kLeaving = ".old-";

Wake wait_for_signal(double seconds) {
  signals::wait(seconds);
  if (signals::stop_requested() != signals::Stop::kNone) {
    return Wake::kStop;
  }
  return signals::take_retry_request() ? Wake::kRetry : Wake::kTimeout;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Removes a folder of ours; a failure only leaves rubbish.
void remove_quietly(const std::string& path) {
  try {
    remove_flat_folder(path);
  } catch (const StorageError& e) {
    log::warning("checkpoint: {} could not be removed ({})", path, e.what());
  }
}

// ".tmp-1200-<run>-<suffix>": the folder of a save of this run that never ended.
bool is_unfinished(std::string_view name, const std::string& run) {
  for (const std::string_view prefix : {kTemporary, kLeaving}) {
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      name.remove_prefix(std::min(name.size(), name.find('-')));
      return name.starts_with("-" + run + "-");
    }
  }
  return false;
}

// ".tmp-probe-<run>", or the file that was to become it.
std::string probe_name(const std::string& run) {
  return format("{}probe-{}", kTemporary, run);
}
bool is_probe(std::string_view name, const std::string& run) {
  return name == probe_name(run) || name.starts_with("." + probe_name(run) + ".");
}

bool holds_only_its_own(const FoundCheckpoint& checkpoint) {
  const std::vector<std::string> names = list_folder(checkpoint.path);
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    const auto& files = checkpoint.manifest.files;
    return name == kManifestName || std::any_of(files.begin(), files.end(), [&](const auto& file) {
             return file.name == name;
           });
  });
}

}  // namespace

CheckpointStore::CheckpointStore(Options options)
    : options_(std::move(options)), rule_(options_.policy) {
  check(is_plain_name(options_.run), "checkpoint: {} is no identity of a run",
        in_quotes(options_.run));
  if (!options_.wait) {
    options_.wait = wait_for_signal;
  }
  if (make_folder(options_.folder)) {
    sync_folder(parent_of(options_.folder));
  }
  clean();
  const CheckpointScan scan = scan_checkpoints(options_.folder);
  if (!scan.valid.empty()) {
    sequence_ = scan.valid.back().manifest.sequence;
    previous_ = scan.valid.back().name;
  }
  probe_folder(options_.folder, probe_name(options_.run));
}

CheckpointStore::~CheckpointStore() {
  if (result_.valid()) {
    const SaveOutcome outcome = result_.get();
    if (!outcome.saved) {
      log::error("checkpoint of step {} was not saved: {}", outcome.step, outcome.error);
    }
  }
}

void CheckpointStore::clean() {
  for (const std::string& name : list_folder(options_.folder)) {
    const std::string path = options_.folder + "/" + name;
    if (is_probe(name, options_.run)) {
      ::unlink(path.c_str());
    } else if (is_unfinished(name, options_.run) && is_folder(path)) {
      log::info("checkpoint: removing {}, left by an interrupted run", path);
      remove_quietly(path);
    }
  }
}

std::unique_ptr<Snapshot> CheckpointStore::snapshot() {
  std::unique_ptr<Snapshot> fresh = spare_ ? std::move(spare_) : std::make_unique<Snapshot>();
  fresh->clear();
  return fresh;
}

bool CheckpointStore::busy() const {
  return result_.valid() && result_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointStore::save_async(std::unique_ptr<Snapshot> snapshot) {
  wait();
  in_flight_ = std::move(snapshot);
  try {
    result_ = std::async(std::launch::async, [this] { return write(*in_flight_); });
  } catch (const std::system_error&) {
    // No thread to be had: then training waits for the write.
    std::promise<SaveOutcome> written;
    written.set_value(write(*in_flight_));
    result_ = written.get_future();
  }
}

std::optional<SaveOutcome> CheckpointStore::settle() {
  return busy() ? std::nullopt : wait();
}

std::optional<SaveOutcome> CheckpointStore::wait() {
  if (!result_.valid()) {
    return std::nullopt;
  }
  SaveOutcome outcome = result_.get();
  return conclude(std::move(outcome), std::move(in_flight_), false);
}

SaveOutcome CheckpointStore::save_now(std::unique_ptr<Snapshot> snapshot, bool last) {
  wait();
  SaveOutcome outcome = write(*snapshot);
  return conclude(std::move(outcome), std::move(snapshot), last);
}

SaveOutcome CheckpointStore::conclude(SaveOutcome outcome, std::unique_ptr<Snapshot> snapshot,
                                      bool last) {
  if (outcome.saved) {
    rule_.succeeded();
    log::info("checkpoint: {}, {} in {}", outcome.path, bytes_text(double(outcome.bytes)),
              seconds_text(outcome.seconds));
  } else {
    const FailureRule::Action action = rule_.failed(last);
    log::warning("checkpoint of step {} was not saved ({} in a row): {}", outcome.step,
                 rule_.failures(), outcome.error);
    if (action == FailureRule::Action::kStop) {
      throw StorageError(
          format("checkpoint of step {} was not saved: {}; the last committed one "
                 "({}) stands",
                 outcome.step, outcome.error, previous_.empty() ? "none" : previous_));
    }
    if (action == FailureRule::Action::kPause) {
      outcome = retry_until_saved(*snapshot, outcome);
    }
  }
  spare_ = std::move(snapshot);
  return outcome;
}

SaveOutcome CheckpointStore::retry_until_saved(const Snapshot& snapshot,
                                               const SaveOutcome& failed) {
  log::warning(
      "training is paused until the checkpoint of step {} can be written; it is tried "
      "every {}, and at once on SIGCONT or SIGUSR2",
      failed.step, seconds_text(options_.policy.poll_seconds));
  for (;;) {
    if (options_.wait(options_.policy.poll_seconds) == Wake::kStop) {
      throw StorageError(
          format("asked to stop while saving was paused; the checkpoint of step {} "
                 "was not saved: {}",
                 failed.step, failed.error));
    }
    const SaveOutcome outcome = write(snapshot);
    if (outcome.saved) {
      rule_.succeeded();
      log::info("checkpoint: {}; training goes on", outcome.path);
      return outcome;
    }
    log::debug("checkpoint of step {}: {}", outcome.step, outcome.error);
  }
}

SaveOutcome CheckpointStore::write(const Snapshot& snapshot) {
  SaveOutcome outcome{.saved = false, .path = {}, .step = snapshot.step};
  const auto start = std::chrono::steady_clock::now();
  try {
    outcome.path = commit(snapshot, outcome.bytes);
    outcome.saved = true;
  } catch (const std::exception& e) {
    outcome.error = e.what();
  }
  outcome.seconds = seconds_since(start);
  if (outcome.saved) {
    try {
      retain();
    } catch (const std::exception& e) {
      log::warning("checkpoint: older ones were not tidied up ({})", e.what());
    }
  }
  return outcome;
}

std::string CheckpointStore::commit(const Snapshot& snapshot, i64& bytes) {
  require_space(options_.folder, snapshot.disk_bytes());
  const std::string temporary = format("{}/{}{}-{}-{}", options_.folder, kTemporary, snapshot.step,
                                       options_.run, random_suffix());
  if (!make_folder(temporary)) {
    throw StorageError(format("make folder {}: it exists already", temporary));
  }
  Manifest manifest{.run = options_.run,
                    .writer = options_.writer,
                    .sequence = sequence_ + 1,
                    .step = snapshot.step,
                    .position = snapshot.position,
                    .metric_name = snapshot.metric_name,
                    .metric = snapshot.metric,
                    .previous = previous_,
                    .files = {}};
  std::string name;
  try {
    for (std::size_t i = 0; i < snapshot.files(); ++i) {
      OutputFile out(temporary + "/" + snapshot.file_name(i), snapshot.file_bytes(i));
      snapshot.write_file(i, out);
      out.finish();
      manifest.files.push_back(
          {.name = snapshot.file_name(i), .bytes = out.bytes(), .checksum = out.checksum()});
      bytes += out.bytes();
    }
    const std::string text = manifest_text(manifest);
    OutputFile out(temporary + "/" + kManifestName, i64(text.size()));
    out.write(text);
    out.finish();
    sync_folder(temporary);
    int again = 0;
    do {
      name = checkpoint_name(snapshot.step, again++);
    } while (::access((options_.folder + "/" + name).c_str(), F_OK) == 0);
    rename_path(temporary, options_.folder + "/" + name);
  } catch (const std::exception&) {
    remove_quietly(temporary);
    throw;
  }
  // It has its name, so from here on it counts for sequence numbers, whatever follows.
  sequence_ = manifest.sequence;
  previous_ = name;
  sync_folder(options_.folder);
  return options_.folder + "/" + name;
}

void CheckpointStore::retain() {
  const CheckpointScan scan = scan_checkpoints(options_.folder);
  std::vector<Manifest> ours;
  std::vector<const FoundCheckpoint*> found;
  for (const FoundCheckpoint& checkpoint : scan.valid) {
    if (checkpoint.manifest.run == options_.run) {
      ours.push_back(checkpoint.manifest);
      found.push_back(&checkpoint);
    }
  }
  // Nothing goes before the one just written has been read back from its folder.
  if (found.empty() || found.back()->name != previous_) {
    throw StorageError(format("checkpoint {}/{} cannot be read back; nothing is deleted",
                              options_.folder, previous_));
  }
  for (const std::size_t i : superseded(ours, options_.retention)) {
    remove(*found[i]);
  }
}

void CheckpointStore::remove(const FoundCheckpoint& checkpoint) {
  if (!holds_only_its_own(checkpoint)) {
    log::warn_once("foreign files in " + checkpoint.path,
                   format("checkpoint {}: it holds files that its manifest does not name; it is "
                          "left where it is",
                          checkpoint.path));
    return;
  }
  // Out of sight first, so that no crash leaves half of it under its name.
  const std::string leaving = format("{}/{}{}-{}-{}", options_.folder, kLeaving,
                                     checkpoint.manifest.step, options_.run, random_suffix());
  rename_path(checkpoint.path, leaving);
  sync_folder(options_.folder);
  remove_flat_folder(leaving);
}

}  // namespace penstock::io
