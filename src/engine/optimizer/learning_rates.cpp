#include "vlmtrain/engine/optimizer/learning_rates.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::engine {

double LearningRates::get_learning_rate(nn::Component component) const {
  switch (component) {
    case nn::Component::kVisionTower:
      return vision_tower;
    case nn::Component::kProjector:
      return projector;
    case nn::Component::kLanguageModel:
      return language_model;
    case nn::Component::kMaskEncoder:
    case nn::Component::kMaskDecoder:
      return masks;
    case nn::Component::kBuffer:
    case nn::Component::kUnused:
      break;
  }
  throw InternalError("unknown component");
}

}  // namespace vlmtrain::engine
