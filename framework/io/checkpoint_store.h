// Checkpoints as committed folders, the writing side: temporary folder, files, manifest, rename. A
// save is written in the background from a host copy, one at a time.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "framework/io/checkpoint.h"
#include "framework/io/checkpoint_policy.h"
#include "framework/io/checkpoint_snapshot.h"

namespace penstock::io {

struct SaveOutcome {
  bool saved = false;
  std::string path;  // of the committed folder
  i64 step = 0;
  i64 bytes = 0;
  double seconds = 0;  // of writing, in the background or not
  std::string error;   // why not
};

// What ended a wait while saving is paused.
enum class Wake { kTimeout, kRetry, kStop };

// Owns the checkpoints/ folder of one run; one per run (rank 0), under its RunLock. A folder
// without this run's identity in its manifest is never touched.
class CheckpointStore {
 public:
  struct Options {
    std::string folder;  // <run>/checkpoints; made if its parent exists
    std::string run;     // run_identity()
    std::string writer = "penstock";
    Retention retention{};
    StoragePolicy policy{};
    // Sleeps that many seconds at most; kRetry when somebody says that there is space again, kStop
    // when the run is to end. Left out: signals::wait().
    std::function<Wake(double seconds)> wait{};
  };

  // Removes what an interrupted save of this run left, and shows that the folder can be written.
  // Throws StorageError.
  explicit CheckpointStore(Options options);
  // Waits for a save in progress; its failure is logged.
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // An empty snapshot, in the host memory of the save before where there was one.
  std::unique_ptr<Snapshot> snapshot();

  // Is a save being written? Then the next one waits for a later step.
  bool busy() const;
  // Begins to write `snapshot`; waits for a save in progress first.
  void save_async(std::unique_ptr<Snapshot> snapshot);
  // The outcome of a save that has ended since, if any. A failure is a warning; after
  // policy.patience of them in a row this pauses until a save succeeds, or throws StorageError.
  // Call it once a step: it costs a look at a flag.
  std::optional<SaveOutcome> settle();
  // The same, waiting for a save in progress.
  std::optional<SaveOutcome> wait();
  // Writes now, on this thread. `last`: nothing follows, so a failure pauses or throws at once.
  SaveOutcome save_now(std::unique_ptr<Snapshot> snapshot, bool last);

  int failures() const { return rule_.failures(); }

 private:
  SaveOutcome write(const Snapshot& snapshot);
  std::string commit(const Snapshot& snapshot, i64& bytes);
  void retain();
  void remove(const FoundCheckpoint& checkpoint);
  void clean();
  SaveOutcome conclude(SaveOutcome outcome, std::unique_ptr<Snapshot> snapshot, bool last);
  SaveOutcome retry_until_saved(const Snapshot& snapshot, const SaveOutcome& failed);

  Options options_;
  FailureRule rule_;
  // Of the last commit. The writer uses them while a save is in progress, nobody else does.
  i64 sequence_ = 0;
  std::string previous_;
  std::unique_ptr<Snapshot> in_flight_;
  std::unique_ptr<Snapshot> spare_;
  std::future<SaveOutcome> result_;
};

}  // namespace penstock::io
