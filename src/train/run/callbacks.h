#pragma once

#include <nlohmann/json.hpp>

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
#include "vlmtrain/report/run_epochs.h"
#include "vlmtrain/report/run_report.h"
#include "vlmtrain/report/tensorboard.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The report of a step whose results have reached the host.
struct StepReport {
  report::StepMetrics metrics;
  std::vector<std::string> sample_ids;  ///< of the global batch, in its order
};

/// An observer of a run. Callbacks change no number, do not run the model and raise no events. They
/// are called on the run's thread, between steps.
class Callback {
 public:
  virtual ~Callback() = default;

  /// A line of metrics.jsonl of an earlier process. All past steps come first, in their order.
  virtual void on_past_step(const nlohmann::json& /*line*/) {}
  /// Called in the order of steps; on a GPU the next step is already running.
  virtual void on_step(const StepReport& /*step*/) {}
  /// The result of an evaluation that a stop had interrupted, after its step was reported.
  virtual void on_late_evaluation(int64_t /*step*/, const report::EvaluationMetrics& /*evaluation*/) {}
  virtual void on_event(const report::Event& /*event*/) {}
  /// An answer of the model at a checkpoint.
  virtual void on_prediction(const report::Prediction& /*prediction*/) {}
  /// The end of the run; all its files are written. `succeeded`: it ended by its last step or by a
  /// requested stop, not by an error.
  virtual void on_end(bool /*succeeded*/) {}
};

/// The callbacks of a run, in the order in which they were added.
class CallbackList {
 public:
  void add(std::unique_ptr<Callback> callback) { callbacks_.push_back(std::move(callback)); }

  // Each calls the function of all callbacks.
  void on_past_step(const nlohmann::json& line);
  void on_step(const StepReport& step);
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation);
  void on_event(const report::Event& event);
  void on_prediction(const report::Prediction& prediction);
  void on_end(bool succeeded);

  /// Returns the seconds spent in callbacks.
  double seconds() const { return seconds_; }

 private:
  template <class Call>
  void for_each(const Call& call);

  std::vector<std::unique_ptr<Callback>> callbacks_;
  double seconds_ = 0;
};

/// Writes metrics.jsonl, one line per step; events.jsonl, one per event; predictions.jsonl, one per
/// answer; with `log_samples` samples.jsonl, the ids of each step.
class MetricsFiles final : public Callback {
 public:
  MetricsFiles(const std::filesystem::path& run_folder, int64_t resumed_step, bool log_samples);

  void on_step(const StepReport& step) override;
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_event(const report::Event& event) override;
  void on_prediction(const report::Prediction& prediction) override;

 private:
  report::StepLog metrics_;
  report::StepLog events_;
  report::StepLog predictions_;
  std::optional<report::StepLog> samples_;
};

/// Writes epochs.jsonl: one row at the end of each epoch, and one for the incomplete epoch at the
/// run's end. The rows follow from metrics.jsonl, so that a resumed run rebuilds the earlier ones.
/// Comes after MetricsFiles.
class EpochRows final : public Callback {
 public:
  explicit EpochRows(const std::filesystem::path& run_folder);

  void on_past_step(const nlohmann::json& line) override;
  void on_step(const StepReport& step) override;
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_end(bool succeeded) override;

 private:
  void restart();

  std::filesystem::path run_folder_;
  report::EpochSummaries epochs_;
  std::optional<report::StepLog> rows_;
};

/// Writes report.html at most every ten seconds, in at most half a percent of the run's time.
class HtmlReport final : public Callback {
 public:
  explicit HtmlReport(const std::filesystem::path& run_folder) : report_(run_folder) {}

  void on_step(const StepReport& step) override;
  void on_end(bool succeeded) override;

 private:
  using Clock = std::chrono::steady_clock;

  void write();

  report::RunReport report_;
  Clock::time_point next_write_ = Clock::now();
  bool failed_ = false;
};

/// Writes TensorBoard's event files into `tensorboard/` of the run's folder.
class TensorBoardEvents final : public Callback {
 public:
  TensorBoardEvents(const std::filesystem::path& run_folder, int64_t resumed_step)
      : events_(run_folder / "tensorboard", resumed_step) {}

  void on_step(const StepReport& step) override { events_.add_step(step.metrics); }
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override {
    events_.add_evaluation(step, evaluation);
  }
  void on_event(const report::Event& event) override { events_.add_text(event.step, "events", event.message); }
  void on_prediction(const report::Prediction& prediction) override { events_.add_prediction(prediction); }

 private:
  report::TensorBoard events_;
};

/// Draws the progress bar on stderr, with evaluations and events as lines above it.
class ProgressBar final : public Callback {
 public:
  ProgressBar(int64_t total_steps, bool quiet, report::BestMetric metric = report::BestMetric::kLoss)
      : progress_(total_steps, quiet), metric_(metric) {}

  void on_past_step(const nlohmann::json& line) override;
  void on_step(const StepReport& step) override;
  void on_late_evaluation(int64_t step, const report::EvaluationMetrics& evaluation) override;
  void on_event(const report::Event& event) override;
  void on_end(bool /*succeeded*/) override { progress_.clear(); }

 private:
  /// Compares two evaluations by the run's metric.
  bool is_at_least_as_good(const report::EvaluationBaseline& current, const report::EvaluationBaseline& best) const;
  void log_evaluation(const report::StepMetrics& metrics);

  report::Progress progress_;
  report::BestMetric metric_;
  std::optional<report::EvaluationBaseline> best_;
};

/// The point at which a process starts a run or resumes it.
struct RunProgress {
  std::filesystem::path folder;
  int64_t step = 0;  ///< completed steps
  int64_t total_steps = 0;
};

/// Adds the callbacks that output.* of `config` asks for. To be called on rank 0.
void add_run_callbacks(CallbackList& callbacks, const Config& config, const RunProgress& run, bool quiet);

}  // namespace vlmtrain::train
