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

/// The state of a training run on a GPU, and its steps. Makes the same allocations as the trainer.
class DryRunSession {
 public:
  /// Builds the model and, `with_training`, the optimizer.
  DryRunSession(const Job& job, at::Device device, bool with_training = true);

  /// Runs a step. Throws engine::StepOutOfMemory if the GPU's memory is exhausted, and UserError
  /// (kFailed) if the host's is.
  void step(const std::vector<SampleGroup>& samples, const engine::StepLayout& layout);
  /// Runs an evaluation batch: first half of it, then all, since changing sizes fragment memory.
  /// Answers have max_new_tokens tokens.
  void evaluate(const EvaluationBatch& batch) const;
  void drop_gradients() { training_->gradient_buckets.reset(); }

  const models::VisionLanguageModel& model() const { return *model_; }
  /// Frees the gradients. REQUIRES: constructed with_training.
  const engine::Training& training() const { return *training_; }
  const StepCollectives& step_collectives() const { return step_collectives_; }

 private:
  void split_block_collectives();

  at::Device device_;
  std::unique_ptr<const engine::Objective> objective_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::Training> training_;
  StepCollectives step_collectives_;
  std::unique_ptr<const engine::Consensus> consensus_;
  std::optional<engine::AsyncScalars> scalars_;  // scalars of a step, until the next one
};

/// Returns the error for a dry run that exhausts the host's memory.
UserError dry_run_out_of_host_memory(const std::string& reason);

/// The look-ahead's session in the child process: a training state on the virtual GPU.
class LookAheadDryRun {
 public:
  LookAheadDryRun(const Job& job, const StepConfig& step_config, at::Device device);

  /// Runs the step with its preferred layout, then with an empty cache, then in smaller
  /// micro-batches until it fits. Each attempt after the first starts with an empty cache, like the
  /// run's own step, so that failed attempts have no effect.
  MemoryForecast dry_run(const LookAheadStep& step);

 private:
  bool run_attempt(const LookAheadStep& step, MemoryForecast& forecast);

  at::Device device_;
  DryRunSession run_;
  int64_t failed_micro_batch_ = -1;
  int64_t num_retries_ = 0;  // retries of the allocator in the last attempt
};

}  // namespace vlmtrain::planner
