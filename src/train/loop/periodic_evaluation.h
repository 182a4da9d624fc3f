#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/data_check/evaluation_set.h"
#include "train/loop/run_setup.h"
#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

/// The evaluations of a run: their steps, the best result, and early stopping.
class PeriodicEvaluation {
 public:
  using OnEvent = std::function<void(report::EventKind, const std::string& message, std::vector<std::string> ids)>;

  /// `settings` says how a batch is computed. `evaluation_set`, `model`, `processor` and `state`
  /// must outlive the object. Resets a state of another data set or metric. `has_values`: false on
  /// a virtual GPU, whose results are not comparable.
  PeriodicEvaluation(const Config& config, const EvaluationSet& evaluation_set,
                     const models::VisionLanguageModel& model, const models::Processor& processor,
                     evaluation::EvaluationSettings settings, bool has_values, EvaluationState& state);

  /// Returns whether an evaluation follows the completed step, which raised the epochs from
  /// `epochs_before` to `epochs_after`. `is_last`: it is the run's last step.
  bool is_due(int64_t step, double epochs_before, double epochs_after, bool is_last) const;

  /// Evaluates the model after `step`. Returns nullopt if a stop was requested; the evaluation
  /// is still due then.
  std::optional<report::EvaluationMetrics> evaluate(int64_t step);

  /// Returns whether training.early_stopping_patience is used up.
  bool should_stop_early() const;
  /// Returns the reason of the early stop for people.
  std::string early_stop_reason() const;

  /// Returns the best result so far, for example "loss 0.1234".
  std::string describe_best() const;
  const std::optional<report::EvaluationMetrics>& last_metrics() const { return last_metrics_; }
  /// Returns the notices of the newest complete evaluation.
  const data::NoticeCounts& notices() const { return notices_; }

 private:
  /// Updates the state if the score is the best so far; returns whether it is.
  bool update_best(int64_t step, const report::EvaluationScore& score);

  const EvaluationOptions& options_;
  const EvaluationSet& evaluation_set_;
  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  evaluation::EvaluationSettings settings_;
  bool has_values_;
  EvaluationState& state_;
  std::optional<report::EvaluationMetrics> last_metrics_;  // by this process
  data::NoticeCounts notices_;
};

/// Returns how the evaluations of `run` compute a batch; the caller sets should_stop and on_event.
evaluation::EvaluationSettings make_evaluation_settings(const Config& config, const RunSetup& run, at::Device device);

/// Forgets the best evaluation, with a warning, if its checkpoint is gone from `run_dir`: a later checkpoint that is
/// not as good is better than none.
void reset_missing_best(const std::filesystem::path& run_dir, EvaluationState& evaluation);

}  // namespace vlmtrain::train
