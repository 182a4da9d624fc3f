#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/order/mixture.h"

namespace vlmtrain::train {

/// The result of a run's evaluations so far.
struct EvaluationState {
  /// The data set and settings of the evaluations; values of another basis are not comparable. Null
  /// if the run has no evaluations.
  nlohmann::ordered_json basis;
  std::optional<int64_t> best_step;  ///< set together with best_value
  std::optional<double> best_value;
  std::optional<double> best_loss;              ///< loss at best_step, which breaks ties; missing in older checkpoints
  int64_t evaluations_without_improvement = 0;  ///< evaluations since best_step
  bool is_due = false;  ///< the evaluation after the newest step is missing, because the run was stopped before it
};

/// The state of a run between two steps. It has no random state: each step's random stream is a
/// function of seed and step.
struct RunState {
  int64_t step = 0;              ///< completed steps
  int64_t last_change_step = 0;  ///< the step after which settings were last changed on purpose (train/run_changes.h)
  /// Steps of the whole run, fixed when it began. The learning rate follows from it and must not
  /// change when samples are repaired or damaged between two starts. Missing in checkpoints of
  /// older versions.
  std::optional<int64_t> total_steps;
  int64_t skipped_steps =
      0;                ///< completed steps whose loss or gradients were not finite, which left the weights unchanged
  data::Cursor cursor;  ///< the position in the sample order
  nlohmann::ordered_json task_balance;  ///< TaskBalance::state(); null without it
  EvaluationState evaluation;
  nlohmann::ordered_json host_memory;  ///< memory limit and micro-batch split of a run on the CPU; else null
  /// The same of a run on a GPU whose steps are split by memory; else null.
  nlohmann::ordered_json device_memory;
  /// The step at which the learning rate schedule starts: 0, or the last change of settings with
  /// training.schedule_origin.
  struct {
    int64_t step = 0;
    int64_t skipped_steps = 0;  ///< skipped steps among them
  } schedule_start;
  /// Keys of the parts that are frozen now and were trained earlier in the run: their weights
  /// differ from the base's.
  std::vector<std::string> frozen_after_training;
  /// The settings that the numbers depend on; a resumed run must have the same
  /// (make_run_fingerprint()).
  nlohmann::ordered_json fingerprint;
};

/// Returns the text of trainer_state/state.json.
std::string format_run_state(const RunState& state);

/// Reads trainer_state/state.json. Throws UserError (kBadData), with file and key, for a number
/// that a run with its fingerprint cannot have, as after an edit: such a number would end the run
/// before its last step.
RunState load_run_state(const std::filesystem::path& checkpoint);

/// Returns the folder of a checkpoint in which a run keeps its own state.
std::filesystem::path get_state_folder(const std::filesystem::path& checkpoint);

/// Returns the step that the name of a checkpoint's folder ends with; nullopt for other names.
std::optional<int64_t> parse_checkpoint_step(const std::filesystem::path& folder);

/// Prefix of the name of a checkpoint's folder; the step follows.
inline constexpr std::string_view kStepPrefix = "step-";

}  // namespace vlmtrain::train
