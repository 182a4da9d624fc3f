#pragma once

#include "vlmtrain/engine/gradient_sums.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// A model and what its training holds on the device beside it from step to step. The weights must be those that it
/// starts with, and what is frozen must be (models::freeze).
struct Training {
  /// `gradient_groups`: as Objective's.
  Training(models::VisionLanguageModel& trained, const AdamWSettings& settings, int64_t gradient_groups = 1)
      : model(trained), sums(trained.parameters(), gradient_groups), optimizer(trained.parameters(), sums, settings) {}

  models::VisionLanguageModel& model;
  GradientSums sums;
  AdamW optimizer;
};

}  // namespace vlmtrain::engine
