#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/settings/step_layout.h"
#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/look_ahead.h"

namespace vlmtrain::planner {

/// The model and optimizer of a dry run, and its steps. Makes the same allocations as the trainer.
/// Not thread-safe.
class DryRunSession {
 public:
  /// Builds the model and, `with_training`, the optimizer. Throws the exceptions of build_model().
  DryRunSession(const Job& job, at::Device device, bool with_training = true);

  /// Runs an optimizer step. Throws engine::StepOutOfMemory if the GPU's memory is exhausted, and
  /// UserError (kFailed) if the host's memory is exhausted. REQUIRES: constructed with_training.
  void step(const std::vector<SampleGroup>& samples, const engine::StepLayout& layout);
  /// Runs half of an evaluation batch and then the whole batch, since changing sizes fragment
  /// memory. Generation reserves memory for max_new_tokens tokens per sample.
  void evaluate(const EvaluationBatch& batch) const;
  /// Frees the gradients of a failed step. REQUIRES: constructed with_training.
  void free_gradients() { training_state_->gradient_buckets.reset(); }

  const models::VisionLanguageModel& model() const { return *model_; }
  /// REQUIRES: constructed with_training.
  const engine::TrainingState& training_state() const { return *training_state_; }
  /// Returns the collectives of the last step.
  const StepCollectives& step_collectives() const { return step_collectives_; }

 private:
  void move_block_reductions();

  at::Device device_;
  std::unique_ptr<const engine::Objective> objective_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::TrainingState> training_state_;
  StepCollectives step_collectives_;
  std::unique_ptr<const engine::Consensus> consensus_;
  std::optional<engine::AsyncScalarCopy> step_scalars_;  // of the last step; kept until the next one, as in the trainer
};

/// Returns the error (kFailed) of a dry run that exhausts the host's memory. `reason` describes the
/// failed allocation.
UserError make_out_of_host_memory_error(const std::string& reason);

/// The look-ahead's session in the child process: a training state on the virtual GPU.
class LookAheadDryRun {
 public:
  /// Builds the model and the optimizer. Throws the exceptions of build_model().
  LookAheadDryRun(const Job& job, const StepConfig& step_config, at::Device device);

  /// Dry-runs the step with its preferred layout. If it does not fit, repeats it with an empty
  /// cache, then with smaller and smaller micro-batches until it fits. Each attempt after the first
  /// starts with an empty cache, as the run will do, so that failed attempts have no effect on the
  /// forecast.
  MemoryForecast dry_run(const LookAheadStep& step);

 private:
  /// Runs the step with the layout of `forecast` and sets its peaks. Returns false if memory runs
  /// out.
  bool run_attempt(const LookAheadStep& step, MemoryForecast& forecast);

  at::Device device_;
  DryRunSession session_;
  int64_t failed_micro_batch_index_ = -1;  // of the last attempt; -1: none, or the optimizer ran out of memory
  int64_t num_alloc_retries_ = 0;          // retries of the allocator in the last attempt
};

}  // namespace vlmtrain::planner
