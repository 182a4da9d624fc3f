#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/engine/consensus.h"
#include "vlmtrain/engine/objective.h"
#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/engine/training.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/planner/look_ahead.h"

namespace vlmtrain::planner {

/// What a run holds on the card while it trains, and how it does a step: allocation by allocation what the trainer
/// does.
class DryRunSession {
 public:
  /// `with_training`: false for a model that is only evaluated.
  DryRunSession(const Job& job, at::Device device, bool with_training = true);

  /// Throws engine::StepOutOfMemory where the card's memory does not suffice, UserError (kFailed) where the host's does
  /// not: that says nothing of the card.
  void step(const std::vector<SampleGroup>& samples, const engine::StepLayout& layout);
  /// What an evaluation does between two steps: a part of the batch, then all of it, since sizes that change fragment
  /// memory. Answers never end.
  void evaluate(const EvaluationBatch& batch) const;
  void drop_gradients() { training_->gradient_buckets.reset(); }

  const models::VisionLanguageModel& model() const { return *model_; }
  /// REQUIRES: it trains.
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
  std::optional<engine::AsyncScalars> scalars_;  // of a step, until the next one
};

/// For what a rehearsal cannot do for lack of the host's memory.
UserError dry_run_out_of_host_memory(const std::string& reason);

/// The child's side of a twin: keeps a run on the virtual card and does its steps.
class LookAheadDryRun {
 public:
  LookAheadDryRun(const Job& job, const StepConfig& step_config, at::Device device);

  /// Tries the step as it is asked for; then with an empty cache; then cut smaller where it does not fit. Every attempt
  /// after the first starts from an empty cache, as the run's own step then does: failed attempts leave no trace.
  MemoryForecast dry_run(const LookAheadStep& step);

 private:
  bool run_attempt(const LookAheadStep& step, MemoryForecast& forecast);

  at::Device device_;
  DryRunSession run_;
  int64_t failed_micro_batch_ = -1;
  int64_t num_retries_ = 0;  // of the last attempt
};

}  // namespace vlmtrain::planner
