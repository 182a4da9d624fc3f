#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/order/draws.h"

namespace vlmtrain::train {

/// The result of a run's evaluations so far.
struct EvaluationState {
  /// The data set, number of samples and metric of the evaluations. Results are comparable only if
  /// these are equal. Null if the run has no evaluations.
  nlohmann::ordered_json comparison_settings;
  std::optional<int64_t> best_step;         ///< set together with best_metric_value
  std::optional<double> best_metric_value;  ///< value of training.best_metric
  std::optional<double> best_step_loss;     ///< loss at best_step, which breaks ties; missing in older checkpoints
  int64_t num_evaluations_without_improvement = 0;  ///< evaluations since best_step
  bool is_due = false;  ///< the evaluation after the newest step is missing, because a stop prevented it
};

/// The state of a run between two steps, as checkpoints store it in trainer_state/state.json. It
/// has no random state, because each step's random stream depends only on training.seed and the
/// step.
struct RunState {
  int64_t step = 0;                       ///< completed steps
  int64_t last_settings_change_step = 0;  ///< completed steps when training.resume=changed last took effect; 0: never
  /// Total steps of the run, fixed at its first start. The learning rate depends on it and must not
  /// change if samples are repaired or damaged between two starts. Checkpoints of older versions
  /// lack it.
  std::optional<int64_t> total_steps;
  /// Completed steps whose loss or gradients were not finite. They left the weights unchanged.
  int64_t num_skipped_steps = 0;
  data::Cursor cursor;                        ///< the position in the sample order
  nlohmann::ordered_json task_balance_state;  ///< TaskBalancer::state(); null without GradNorm
  EvaluationState evaluation;
  /// SavedPlan (memory limit and step configuration) of a run on the CPU; otherwise null.
  nlohmann::ordered_json saved_host_plan;
  /// SavedPlan of a run on a GPU whose steps are split by memory; otherwise null.
  nlohmann::ordered_json saved_device_plan;
  /// The start of the learning rate schedule: 0, or the last change of the schedule with
  /// training.schedule_from=change.
  struct {
    int64_t step = 0;               ///< completed steps at the start
    int64_t num_skipped_steps = 0;  ///< skipped steps before the start
  } schedule_start;
  /// Keys (model.freeze_…) of the parts that are frozen now but were trained earlier in the run.
  /// Their weights differ from the base checkpoint's.
  std::vector<std::string> keys_frozen_after_training;
  /// The settings that affect the results (make_run_fingerprint()). A resumed run must have the
  /// same ones, unless training.resume=changed allows the difference.
  nlohmann::ordered_json fingerprint;
};

/// Returns the text of trainer_state/state.json.
std::string format_run_state(const RunState& state);

/// Reads trainer_state/state.json. Throws UserError (kBadData), with file and key, for an invalid
/// file and for numbers that a run with this fingerprint cannot have. An edited number could
/// otherwise end the run before its last step.
RunState load_run_state(const std::filesystem::path& checkpoint);

/// Returns the folder trainer_state of a checkpoint.
std::filesystem::path get_trainer_state_folder(const std::filesystem::path& checkpoint);

/// Returns the step in the name of a checkpoint's folder, step-N; nullopt for other names.
std::optional<int64_t> parse_checkpoint_step(const std::filesystem::path& folder);

/// Prefix of the name of a checkpoint's folder, followed by the step.
inline constexpr std::string_view kCheckpointNamePrefix = "step-";

}  // namespace vlmtrain::train
