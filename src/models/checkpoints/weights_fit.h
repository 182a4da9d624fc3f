#pragma once

#include <filesystem>

#include "vlmtrain/memory/host.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Throws UserError (kDoesNotFit) where the weights of a model on the CPU take more than `available`. Its values need
/// not be there yet. For what is not trained, and so not planned: evaluation and generation.
void check_weights_fit(const VisionLanguageModel& model, const std::filesystem::path& folder,
                       const memory::AvailableHostMemory& available);

}  // namespace vlmtrain::models
