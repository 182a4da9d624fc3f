#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::nn {
struct Parameter;  // nn/weights/parameters.h
}  // namespace vlmtrain::nn

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

/// Returns the parameters that a checkpoint stores: all except LoRA adapters.
std::vector<nn::Parameter> get_base_parameters(const VisionLanguageModel& model);

/// Returns the checkpoint names and the detached tensors of get_base_parameters(), without copying.
io::NamedTensors get_named_weights(const VisionLanguageModel& model);

/// Returns a parameter's initial values, fp32 on the host. They depend only on `seed` and the
/// parameter's name. The parameter may be on the meta device.
at::Tensor make_initial_values(const nn::Parameter& parameter, uint64_t seed);

/// Adds the weights of initialize_weights(), rounded to `dtype`, to the files of a preset in
/// `folder`, and sets the dtype in its config.json. Memory holds one tensor at a time.
void write_initial_weights(const std::filesystem::path& folder, uint64_t seed, at::ScalarType dtype);

/// Sets a parameter to its initial values.
void initialize_parameter(const nn::Parameter& parameter, uint64_t seed);

/// Throws UserError (kDoesNotFit) if the weights of a model on the CPU exceed `available`. Call it
/// before the weights are loaded: their memory need not be touched yet. For commands without a
/// memory plan, such as evaluation and generation. `folder` names the model in errors.
void check_host_memory(const VisionLanguageModel& model, const std::filesystem::path& folder,
                       const memory::AvailableHostMemory& available);

}  // namespace vlmtrain::models
