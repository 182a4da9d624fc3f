#pragma once

#include <cstdint>
#include <vector>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// The parameters that the checkpoint has: all but those of LoRA's adapters.
std::vector<nn::Parameter> own_parameters(const VisionLanguageModel& model);

/// Those, as a checkpoint has them: names and tensors without gradients, not copies.
io::NamedTensors weights_of(const VisionLanguageModel& model);

/// Sets a parameter to its initial values, which depend on seed and name only.
void draw_initial_values(const nn::Parameter& parameter, uint64_t seed);

}  // namespace vlmtrain::models
