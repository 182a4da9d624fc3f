#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/order.h"

namespace vlmtrain::train {

/// What a run's evaluations have shown so far.
struct EvaluationState {
  /// What was evaluated and by what: the values of another are not compared with these. Null where the run has no
  /// evaluations.
  nlohmann::ordered_json basis;
  std::optional<int64_t> best_step;  ///< both or none
  std::optional<double> best_value;
  std::optional<double> best_loss;  ///< at that step, which decides between equal values; not in older checkpoints
  int64_t evaluations_without_improvement = 0;  ///< evaluations in a row since then
  bool is_due = false;  ///< the one after the newest step is still to be made, since a stop came first
};

/// Where a run stands between two steps. Random numbers need no state: each step's stream is a function of seed and
/// step.
struct RunState {
  int64_t step = 0;              ///< steps done
  int64_t last_change_step = 0;  ///< of these, when settings were last changed on purpose (train/run_changes.h)
  /// Of the whole run, as it was when it began: what follows from it, such as the learning rate, does not change where
  /// samples are mended or damaged between two starts. Nothing in checkpoints of older versions.
  std::optional<int64_t> total_steps;
  int64_t skipped_steps = 0;            ///< of these, whose loss or gradients were not finite: nothing was moved
  data::Cursor cursor;                  ///< where the next step's samples are drawn
  nlohmann::ordered_json task_balance;  ///< TaskBalance::state(), null without it
  EvaluationState evaluation;
  nlohmann::ordered_json host_memory;  ///< of a run on the CPU: the limit and the cut that it started with, else null
  /// The same of a run on a GPU whose steps are cut by memory, each for its own samples; else null.
  nlohmann::ordered_json device_memory;
  /// Where the learning rate's course began: at the start, or with training.schedule_origin at a change.
  struct {
    int64_t step = 0;
    int64_t skipped_steps = 0;  ///< of these
  } schedule_start;
  /// Keys of the parts that are frozen and were trained earlier in the run: their weights are its own, not the base's.
  std::vector<std::string> frozen_after_training;
  /// What the numbers depend on: a resumed run must have the same.
  nlohmann::ordered_json fingerprint;
};

/// Returns the text of trainer_state/state.json.
std::string format_run_state(const RunState& state);

/// Reads trainer_state/state.json. Throws UserError (kBadData) that names file and key where a number cannot be one of
/// a run with its fingerprint, as after an edit: it would be believed, and a run end before its last step.
RunState load_run_state(const std::filesystem::path& checkpoint);

/// Returns the folder of a checkpoint in which a run keeps its own state.
std::filesystem::path get_state_folder(const std::filesystem::path& checkpoint);

/// Returns the step that the name of a checkpoint's folder ends with; nothing for other names.
std::optional<int64_t> parse_checkpoint_step(const std::filesystem::path& folder);

/// Prefix of the name of a checkpoint's folder; the step follows.
inline constexpr std::string_view kStepPrefix = "step-";

}  // namespace vlmtrain::train
