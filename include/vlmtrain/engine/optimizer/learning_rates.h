#pragma once

#include "vlmtrain/nn/weights/lora_settings.h"

namespace vlmtrain::engine {

/// The learning rates of one step by component.
struct LearningRates {
  double vision_tower = 0;
  double projector = 0;
  double language_model = 0;
  double masks = 0;            ///< for mask encoder and mask decoder
  double schedule_factor = 1;  ///< factor of the peak learning rates of parameter groups

  /// Returns the learning rate of a component. Throws InternalError unless is_trainable(component).
  double get_learning_rate(nn::Component component) const;
};

}  // namespace vlmtrain::engine
