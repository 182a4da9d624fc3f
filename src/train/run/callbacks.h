#pragma once

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/report/metrics.h"
#include "vlmtrain/report/prediction.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/report/run_report.h"
#include "vlmtrain/report/tensorboard.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The report of a step whose results have reached the host.
struct StepReport {
  report::StepMetrics metrics;
  std::vector<std::string> sample_ids;  ///< ids of the global batch; those of other ranks come last
};

/// An observer of a run. Callbacks must not change results, run the model or raise events. They are
/// called on the run's thread, between steps. An exception ends the run.
class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;

  /// Called for each line of metrics.jsonl of earlier processes, in their order, before all other
  /// calls.
  virtual void on_logged_step(const nlohmann::json& /*line*/) {}
  /// Called for each step, in order. On a GPU the next step is already running.
  virtual void on_step(const StepReport& /*step*/) {}
  /// Called with the result of an evaluation that a stop had prevented. Its step was already
  /// reported.
  virtual void on_deferred_evaluation(int64_t /*step*/, const report::EvaluationMetrics& /*evaluation*/) {}
  /// Called for each event of the run.
  virtual void on_event(const report::RunEvent& /*event*/) {}
  /// Called for each answer of the model at a checkpoint.
  virtual void on_prediction(const report::Prediction& /*prediction*/) {}
  /// Called once at the end of the run, after its files are written. `succeeded`: false if an error
  /// ended the run.
  virtual void on_end(bool /*succeeded*/) {}
};

/// The callbacks of a run. Calls them in the order in which they were added. Not thread-safe.
class CallbackList {
 public:
  void add(std::unique_ptr<TrainerCallback> callback) { callbacks_.push_back(std::move(callback)); }

  // Each function calls the function of the same name of all callbacks.
  void on_logged_step(const nlohmann::json& line);
  void on_step(const StepReport& step);
  void on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation);
  void on_event(const report::RunEvent& event);
  void on_prediction(const report::Prediction& prediction);
  void on_end(bool succeeded);

  /// Returns the seconds spent in callbacks.
  double callback_seconds() const { return callback_seconds_; }

 private:
  template <class Call>
  void call_all_callbacks(const Call& call);

  std::vector<std::unique_ptr<TrainerCallback>> callbacks_;
  double callback_seconds_ = 0;
};

/// The writer of metrics.jsonl (one line per step), events.jsonl (one per event), predictions.jsonl
/// (one per answer) and, with `log_samples`, samples.jsonl (the sample ids of each step).
class MetricsFileCallback final : public TrainerCallback {
 public:
  /// Removes lines after `resumed_step`, the last completed step, from existing files. Throws
  /// UserError for files that cannot be written.
  MetricsFileCallback(const std::filesystem::path& run_folder, int64_t resumed_step, bool log_samples);

  void on_step(const StepReport& step) override;
  void on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_event(const report::RunEvent& event) override;
  void on_prediction(const report::Prediction& prediction) override;

 private:
  report::StepLog metrics_log_;
  report::StepLog event_log_;
  report::StepLog prediction_log_;
  std::optional<report::StepLog> sample_log_;
};

/// The writer of epochs.jsonl: one line at the end of each epoch, and one for the incomplete epoch
/// at the end of the run. A resumed run rebuilds the file from metrics.jsonl. Must be added after
/// MetricsFileCallback, whose file it reads.
class EpochsFileCallback final : public TrainerCallback {
 public:
  explicit EpochsFileCallback(const std::filesystem::path& run_folder);

  void on_logged_step(const nlohmann::json& line) override;
  void on_step(const StepReport& step) override;
  void on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_end(bool succeeded) override;

 private:
  /// Empties the file.
  void clear_epochs_file();

  std::filesystem::path run_folder_;
  report::EpochSummaries epoch_summaries_;
  std::optional<report::StepLog> epoch_log_;
};

/// The writer of report.html. It writes at most every ten seconds, and in at most 0.5 % of the
/// run's time. Failures are only logged.
class HtmlReportCallback final : public TrainerCallback {
 public:
  explicit HtmlReportCallback(const std::filesystem::path& run_folder) : run_report_(run_folder) {}

  void on_step(const StepReport& step) override;
  void on_end(bool succeeded) override;

 private:
  using Clock = std::chrono::steady_clock;

  void write();

  report::RunReport run_report_;
  Clock::time_point next_write_time_ = Clock::now();
  bool has_write_failed_ = false;
};

/// The writer of TensorBoard's event files in the folder `tensorboard` of the run.
class TensorBoardCallback final : public TrainerCallback {
 public:
  TensorBoardCallback(const std::filesystem::path& run_folder, int64_t resumed_step)
      : event_log_(run_folder / "tensorboard", resumed_step) {}

  void on_step(const StepReport& step) override { event_log_.add_step(step.metrics); }
  void on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override {
    event_log_.add_evaluation(step, evaluation);
  }
  void on_event(const report::RunEvent& event) override { event_log_.add_text(event.step, "events", event.message); }
  void on_prediction(const report::Prediction& prediction) override { event_log_.add_prediction(prediction); }

 private:
  report::TensorBoardWriter event_log_;
};

/// The progress bar on stderr. Evaluations and events are logged as lines above it.
class ProgressBarCallback final : public TrainerCallback {
 public:
  ProgressBarCallback(int64_t total_steps, bool quiet, report::BestMetric metric = {})
      : progress_(total_steps, quiet), best_metric_(std::move(metric)) {}

  void on_logged_step(const nlohmann::json& line) override;
  void on_step(const StepReport& step) override;
  void on_deferred_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_event(const report::RunEvent& event) override;
  void on_end(bool /*succeeded*/) override { progress_.clear(); }

 private:
  /// Returns whether `current` is at least as good as `best` by the run's metric.
  bool is_at_least_as_good(const report::EvaluationBaseline& current, const report::EvaluationBaseline& best) const;
  void log_evaluation(const report::StepMetrics& metrics);

  report::ProgressBar progress_;
  report::BestMetric best_metric_;
  std::optional<report::EvaluationBaseline> best_evaluation_;
};

/// The progress of a run when this process starts or resumes it.
struct RunProgress {
  std::filesystem::path folder;  ///< the run's folder
  int64_t step = 0;              ///< completed steps
  int64_t total_steps = 0;
};

/// Adds the callbacks for section `output` of `config`. `quiet`: no progress bar. REQUIRES: called
/// on rank 0 only, since callbacks write files.
void add_run_callbacks(CallbackList& callbacks, const Config& config, const RunProgress& run, bool quiet);

/// A stopwatch that adds the duration of its life to `seconds` in the destructor.
class ScopedStopwatch {
 public:
  explicit ScopedStopwatch(double& seconds) : seconds_(seconds) {}
  ~ScopedStopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  ScopedStopwatch(const ScopedStopwatch&) = delete;
  ScopedStopwatch& operator=(const ScopedStopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace vlmtrain::train
