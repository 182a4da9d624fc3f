#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// The parameters that the checkpoint has: all but those of LoRA's adapters.
std::vector<nn::Parameter> get_base_parameters(const VisionLanguageModel& model);

/// Those, as a checkpoint has them: names and tensors without gradients, not copies.
io::NamedTensors get_named_weights(const VisionLanguageModel& model);

/// A parameter's initial values, fp32 on the host. They depend on seed and name only; the parameter may be on the meta
/// device.
at::Tensor make_initial_values(const nn::Parameter& parameter, uint64_t seed);

/// Adds to a preset's files in `folder` the weights that initialize_weights would draw, rounded to `dtype`, and the
/// dtype to its config.json. Memory holds one tensor at a time.
void write_initial_weights(const std::filesystem::path& folder, uint64_t seed, at::ScalarType dtype);

/// Sets a parameter to these.
void initialize_parameter(const nn::Parameter& parameter, uint64_t seed);

/// Throws UserError (kDoesNotFit) where the weights of a model on the CPU take more than `available`. Its values need
/// not be there yet. For what is not trained, and so not planned: evaluation and generation.
void check_weights_fit(const VisionLanguageModel& model, const std::filesystem::path& folder,
                       const memory::AvailableHostMemory& available);

}  // namespace vlmtrain::models
