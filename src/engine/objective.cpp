#include "vlmtrain/engine/objective.h"

#include "vlmtrain/engine/cross_entropy.h"
#include "vlmtrain/engine/text_and_masks.h"

namespace vlmtrain::engine {

std::unique_ptr<const Objective> make_objective(const ObjectiveSettings& settings) {
  if (settings.masks) return std::make_unique<TextAndMasks>(settings.tasks, *settings.masks);
  return std::make_unique<CrossEntropy>(settings.tasks);
}

}  // namespace vlmtrain::engine
