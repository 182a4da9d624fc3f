#include "train/unsafe_to_save.h"

#include <c10/util/Exception.h>

namespace vlmtrain::train {

std::string find_unsafe_save_reason(const std::exception& error, const RunErrorState& state) {
  if (state.is_saving) return "the error came while a checkpoint was written";
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) {
    return "the device failed, and what it holds cannot be trusted";
  }
  if (!state.are_weights_consistent) return "the error came while the weights were moved";
  if (state.metrics_are_lost) return "what came of the last step is not known";
  return {};
}

}  // namespace vlmtrain::train
