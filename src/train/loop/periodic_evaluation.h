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
#include "vlmtrain/report/event.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

/// The evaluations of a run: after which steps, of what, which was the best, and when there have been enough without a
/// better one.
class PeriodicEvaluation {
 public:
  using OnEvent = std::function<void(report::EventKind, const std::string& message, std::vector<std::string> ids)>;

  /// `settings` is how a batch is computed; `evaluation_set`, `model`, `processor` and `state` have to outlive it. A
  /// state of another data set or metric begins anew. `has_values`: false on a virtual card, where nothing is better
  /// than anything.
  PeriodicEvaluation(const Config& config, const EvaluationSet& evaluation_set,
                     const models::VisionLanguageModel& model, const models::Processor& processor,
                     evaluation::EvaluationSettings settings, bool has_values, EvaluationState& state);

  /// Whether one follows the step that is done by now. `epochs_before` and `epochs_after` it; `is_last` of the run.
  bool is_due(int64_t step, double epochs_before, double epochs_after, bool is_last) const;

  /// Of the model as it is after `step`. Nothing where a stop was asked for meanwhile: it is still due then.
  std::optional<report::EvaluationMetrics> evaluate(int64_t step);

  /// Whether training.early_stopping_patience is used up.
  bool should_stop_early() const;
  /// Why the run ends then.
  std::string early_stop_reason() const;

  /// "loss 0.1234", of the best so far.
  std::string describe_best() const;
  const std::optional<report::EvaluationMetrics>& last_metrics() const { return last_metrics_; }
  /// Of the samples of the newest evaluation that was not interrupted.
  const data::NoticeCounts& notices() const { return notices_; }

 private:
  /// Whether it is the best so far, which the state then has.
  bool update_best(int64_t step, const report::EvaluationScore& score);

  const EvaluationOptions& options_;
  const EvaluationSet& evaluation_set_;
  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  evaluation::EvaluationSettings settings_;
  bool has_values_;
  EvaluationState& state_;
  std::optional<report::EvaluationMetrics> last_metrics_;  // of this process
  data::NoticeCounts notices_;
};

/// Returns how the evaluations of `run` compute a batch; the caller sets should_stop and on_event.
evaluation::EvaluationSettings make_evaluation_settings(const Config& config, const RunSetup& run, at::Device device);

/// Forgets the best evaluation, with a warning, where its checkpoint is gone from `run_dir`: a later checkpoint that is
/// not as good is better than none.
void reset_missing_best(const std::filesystem::path& run_dir, EvaluationState& evaluation);

}  // namespace vlmtrain::train
