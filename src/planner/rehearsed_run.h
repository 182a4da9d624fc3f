#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/engine/async_scalars.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/planner/rehearsal.h"

namespace vlmtrain::planner {

/// What a run holds on the card while it trains, and how it does a step: allocation by allocation what the trainer
/// does.
class RehearsedRun {
 public:
  /// `trains`: false for a model that is only evaluated.
  RehearsedRun(const Job& job, at::Device device, bool trains = true);

  /// Throws engine::StepOutOfMemory where the card's memory does not suffice, UserError (kFailed) where the host's does
  /// not: that says nothing of the card.
  void step(const std::vector<SampleGroup>& samples, const engine::StepLayout& layout);
  /// What an evaluation does between two steps: a part of the batch, then all of it, since sizes that change fragment
  /// memory. Answers never end.
  void evaluate(const EvaluatedBatch& batch) const;
  void drop_gradients() { sums_->drop(); }

  const models::VisionLanguageModel& model() const { return *model_; }
  const engine::AdamW& optimizer() const { return *optimizer_; }

 private:
  at::Device device_;
  engine::TaskSettings tasks_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::GradientSums> sums_;
  std::unique_ptr<engine::AdamW> optimizer_;
  std::optional<engine::AsyncScalars> scalars_;  // of a step, until the next one
};

/// For what a rehearsal cannot do for lack of the host's memory.
UserError rehearsal_lacks_memory(const std::string& reason);

/// The layout that a plan gives a step of these samples.
engine::StepLayout layout_of(const Choices& choices, const std::vector<SampleGroup>& samples);

}  // namespace vlmtrain::planner
