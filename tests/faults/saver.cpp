// The storage side of a training run in a process of its own, to be killed and refused: lock,
// identity, resume, journal, events, saves. saver <run folder> <last step>; prints the step that it
// resumed from. Ends with 0 when the last save is committed, 6 when storage failed.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "framework/core/device.h"
#include "framework/io/checkpoint_store.h"
#include "framework/io/journal.h"
#include "framework/io/lock.h"
#include "framework/io/signals.h"
#include "framework/io/tensorboard.h"
#include "tests/faults/saver.h"

using namespace penstock;
using namespace penstock::io;

namespace {

std::unique_ptr<Snapshot> filled(CheckpointStore& store, i64 step) {
  std::unique_ptr<Snapshot> s = store.snapshot();
  s->step = step;
  s->position = step * 32;
  const std::vector<NamedTensor> tensors = {
      {.name = "w", .tensor = Tensor::from(faults::weights(step), {faults::kWeights}, kCpu)}};
  s->add_tensors(kModelFile, tensors);
  s->add_text(kRunFile, format("{{\"step\":{}}}", step));
  return s;
}

void train(const std::string& folder, i64 last) {
  const RunLock lock(folder);
  const std::string run = run_identity(folder);
  const std::string checkpoints = folder + "/checkpoints";
  const auto resumed = resume_newest(checkpoints);
  i64 step = resumed ? resumed->manifest().step : 0;
  std::printf("resumed from %lld\n", static_cast<long long>(step));
  std::fflush(stdout);
  CheckpointStore store({.folder = checkpoints,
                         .run = run,
                         .retention = {.keep_last = 2, .keep_best = 0},
                         .policy = {.patience = 3, .on_full = OnFull::kStop}});
  Journal journal({.path = folder + "/metrics.jsonl", .retry_seconds = 0},
                  {.run = run, .step = step, .position = step * 32});
  EventWriter events(folder, step);
  while (step < last) {
    ++step;
    journal.write(format("{{\"step\":{},\"loss\":{}}}", step, 1.0 / double(step)));
    events.scalar("loss", float(1.0 / double(step)), step);
    if (step < last) {
      store.save_async(filled(store, step));
      store.wait();
    } else {
      store.save_now(filled(store, step), true);
    }
    events.flush();
  }
  replace_file(folder + "/summary.json", format("{{\"step\":{}}}\n", step));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  signals::install();
  try {
    train(argv[1], std::atoll(argv[2]));
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return int(e.code());
  }
  return 0;
}
