// Everything a run says: the terminal, metrics.jsonl, decisions.jsonl, TensorBoard, summary.json and the
// report.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/io/checkpoint_store.h"
#include "framework/measure/progress.h"
#include "framework/measure/report.h"
#include "trainers/auto_batch.h"
#include "trainers/evaluate.h"
#include "trainers/run_folder.h"
#include "trainers/run_state.h"

namespace penstock::trainers {

struct RecorderOptions {
  bool json = false;
  bool quiet = false;
};
// Where this session begins.
struct RecorderStart {
  i64 step = 0, position = 0;
  double seconds = 0;
  i64 total_samples = 0;
};

class Recorder {
 public:
  Recorder(const Setup& setup, const RunFolder& folder, const RecorderOptions& options,
           const RecorderStart& start);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void planned(const BatchPlan& plan);
  void decided(const AutoBatch& found, const tuner::PolicyDecision& answer);
  void started(const RunState& state, const data::Loader& loader, Device device);
  // What the run does instead of training, for the progress line.
  void activity(const std::string& what);
  // Would the progress line show anything?
  bool due() const;

  struct Interval {
    measure::StepAccount account;
    std::optional<measure::Bandwidth> dram;
    data::LoaderStats loader;
    double learning_rate = 0;
  };
  void progress(const RunState& state, const Setup& setup, const data::Loader& loader,
                const Interval* interval);
  void interval(const RunState& state, const Setup& setup, const data::Loader& loader, StepRunner& runner,
                const Interval& interval);
  void evaluated(const RunState& state, const Evaluation& e);
  void saved(const io::SaveOutcome& outcome);
  void tuned(const RunState& state, const std::string& reason);
  void decisions(const std::vector<tuner::Record>& records, const RunState& state);
  void finished(const RunState& state, const Setup& setup, const std::string& reason,
                const AutoBatch* found, const data::Loader& loader);

 private:
  std::optional<measure::Verdict> judge(const RunState& state, const Setup& setup) const;
  void write_report(const RunState& state, const Setup& setup, bool live);

  const Setup& setup_;
  const RunFolder& folder_;
  RecorderOptions options_;
  RecorderStart start_;
  double begin_ = 0;
  io::Journal metrics_;
  io::Journal decisions_;
  std::unique_ptr<io::EventWriter> events_;
  measure::ProgressLine line_;
  measure::Progress shown_;
  std::optional<measure::EtaEstimator> eta_;
  measure::ReportData report_;
  measure::StepAccount total_;     // of the session
  measure::StepAccount recent_;    // of the last intervals, for the verdict
  std::optional<measure::Bandwidth> dram_;
  std::optional<BatchPlan> plan_;
  std::optional<measure::StepCost> cost_;
  std::optional<measure::Ceilings> ceilings_;
  std::optional<double> elasticity_;
  std::optional<i64> largest_, knee_;
  i64 memory_high_ = 0;
  double last_loss_ = 0;
  std::optional<Evaluation> last_evaluation_;
  std::optional<measure::Verdict> verdict_;
  double last_report_ = -1e9;
  io::Json auto_batch_;
};

}  // namespace penstock::trainers
