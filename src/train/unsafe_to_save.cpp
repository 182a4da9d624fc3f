#include "train/unsafe_to_save.h"

#include <c10/util/Exception.h>

namespace vlmtrain::train {

std::string unsafe_to_save(const std::exception& error, const Interruption& where) {
  if (where.is_saving) return "the error came while a checkpoint was written";
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) {
    return "the device failed, and what it holds cannot be trusted";
  }
  if (!where.weights_are_whole) return "the error came while the weights were moved";
  if (where.numbers_are_lost) return "what came of the last step is not known";
  return {};
}

}  // namespace vlmtrain::train
