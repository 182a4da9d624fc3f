#pragma once

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// The model's parameters as a checkpoint has them: names and tensors without gradients, not copies.
io::NamedTensors weights_of(const VisionLanguageModel& model);

}  // namespace vlmtrain::models
