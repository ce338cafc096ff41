#include "trainers/evaluate.h"

#include <algorithm>

#include "framework/measure/clock.h"

namespace penstock::trainers {

std::optional<Evaluation> evaluate(const Setup& setup, StepRunner& runner, const EvaluateOptions& o) {
  if (!setup.validation) {
    throw ConfigError(format("{}: there is no validation data; set data.validation", setup.config.source));
  }
  const double begin = measure::monotonic_seconds();
  const i64 total = o.samples > 0 ? std::min(o.samples, setup.validation->size()) : setup.validation->size();
  data::LoaderOptions options = loader_options(setup);
  options.sampler.shuffle = false;
  options.batch = o.batch;
  options.workers = o.workers;
  options.start = 0;
  options.end = total;
  options.max_bytes = std::min<i64>(setup.config.loader.max_bytes, i64{256} << 20);
  data::Loader loader(setup.validation, options);
  Evaluation e;
  i64 correct = 0;
  i64 targets = 0;
  while (loader.left() > 0) {
    if (o.stop && o.stop()) {
      return std::nullopt;
    }
    const data::Batch batch = loader.next(std::min(o.batch, loader.largest_batch()));
    const i64 ticket = runner.load(batch);
    const StepRunner::Evaluated part = runner.evaluate(batch.count);
    runner.wait_copied(ticket);
    e.loss += part.loss_sum;
    correct += part.correct;
    targets += setup.targets_per_sample > 0 ? batch.count * setup.targets_per_sample : batch.targets;
    e.samples += batch.count;
    loader.release(batch);
  }
  e.loss = targets > 0 ? e.loss / double(targets) : 0;
  if (targets > 0) {
    e.accuracy = double(correct) / double(targets);
  }
  e.seconds = measure::monotonic_seconds() - begin;
  return e;
}

}  // namespace penstock::trainers
