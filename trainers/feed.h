// Between loader and step: takes samples, hands them to the device, gives slots back, and keeps the
// account of where the time went.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "data/loader.h"
#include "framework/io/watchdog.h"
#include "framework/measure/account.h"
#include "trainers/step.h"

namespace penstock::trainers {

// How one optimizer step is made.
struct StepShape {
  i64 micro = 1;       // samples per micro-batch
  i64 accumulate = 1;  // micro-batches per step
  i64 total = 0;       // samples per step, where the last micro-batch is smaller; 0: the product
  i64 samples() const { return total > 0 ? total : micro * accumulate; }
};

struct FeedOptions {
  i64 targets_per_sample = 1;  // 0: counted by the loader, sample by sample
  bool join_single = false;    // a last single sample joins the step before (batch norm)
  bool eager = false;          // never ask for a captured step
  // Learning rate and the rest for a step that begins at `position` and takes `samples`.
  std::function<StepInputs(i64 position, i64 samples)> inputs;
};

class Feed {
 public:
  Feed(data::Loader& loader, StepRunner& runner, FeedOptions options);

  // What one step took; samples 0: the data have ended.
  struct Taken {
    i64 samples = 0;
    i64 targets = 0;
    i64 position = 0;  // of its first sample
    i64 next = 0;      // position behind it
    i64 epoch = 0;
    bool ends_epoch = false;
    bool usual = true;  // full micro-batches only
  };
  Taken step(const StepShape& shape);
  // Waits for copies and gives every slot back.
  void drain();

  // Everything since the last call.
  data::LoaderStats take_loader_stats();
  // Spans for the account; cleared by the call.
  struct Wait {
    measure::Span span;
    measure::WaitSplit split;
  };
  std::vector<Wait> take_waits();

 private:
  data::Batch take(i64 count);
  void give_back(bool wait_for_one);

  data::Loader& loader_;
  StepRunner& runner_;
  FeedOptions options_;
  struct Held {
    data::Batch batch;
    i64 ticket = 0;
  };
  std::deque<Held> held_;
  std::vector<Wait> waits_;
  data::LoaderStats stats_;
};

}  // namespace penstock::trainers
