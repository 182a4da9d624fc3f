#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/data_check/run_records.h"
#include "train/loop/run_setup.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

/// The evaluations of a run: when they are due, the best result, and early stopping. Not
/// thread-safe.
class PeriodicEvaluation {
 public:
  /// The type of evaluation::EvaluationSettings::on_event.
  using EventHandler = std::function<void(report::EventKind, const std::string& message, std::vector<std::string> ids)>;

  /// All arguments passed by reference must outlive the object. `settings`: how batches are
  /// computed (make_evaluation_settings). `computes_values`: false on a virtual GPU, which computes
  /// no results. `state`: updated by each evaluation; reset, with a warning, if it is from another
  /// data set or metric.
  PeriodicEvaluation(const Config& config, const EvaluationSet& evaluation_set,
                     const models::VisionLanguageModel& model, const models::Processor& processor,
                     evaluation::EvaluationSettings settings, bool computes_values, EvaluationState& state);

  /// Returns whether an evaluation follows the completed step, which raised the epochs from
  /// `epochs_before` to `epochs_after`. `is_last`: it is the run's last step.
  bool is_due(int64_t step, double epochs_before, double epochs_after, bool is_last) const;

  /// Evaluates the model after `step` and updates the state. Each rank that calls this evaluates
  /// all samples; all ranks must call it if they hold sharded weights. Returns nullopt if
  /// settings.should_stop interrupted the evaluation, which is still due then.
  std::optional<report::EvaluationMetrics> evaluate(int64_t step);

  /// Returns whether training.early_stopping_patience is used up.
  bool should_stop_early() const;
  /// Returns the reason for the early stop, for the log.
  std::string describe_early_stop() const;

  /// Returns the best result so far, for example "loss 0.1234"; empty if there is none.
  std::string format_best_metric() const;
  /// Returns the newest evaluation of this process; nullopt if it has completed none.
  const std::optional<report::EvaluationMetrics>& last_metrics() const { return last_metrics_; }
  /// Returns the notices of the newest complete evaluation.
  const data::NoticeCounts& notices() const { return notices_; }

 private:
  /// Returns whether the score is the best so far, and updates the state.
  bool update_best_metric(int64_t step, const report::EvaluationScore& score);

  const EvaluationOptions& options_;
  const EvaluationSet& evaluation_set_;
  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  evaluation::EvaluationSettings settings_;
  bool computes_values_;
  EvaluationState& state_;
  std::optional<report::EvaluationMetrics> last_metrics_;  // of this process
  data::NoticeCounts notices_;
};

/// Returns the settings of the evaluations of `run`, without should_stop and on_event.
evaluation::EvaluationSettings make_evaluation_settings(const Config& config, const RunSetup& run);

/// Resets the best evaluation, with a warning, if its checkpoint no longer exists in `run_dir`.
/// Otherwise no later checkpoint would be kept as the best unless it was better than the lost one.
void reset_missing_best_evaluation(const std::filesystem::path& run_dir, EvaluationState& evaluation);

}  // namespace vlmtrain::train
