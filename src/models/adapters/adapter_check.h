#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Throws UserError (kBadData) that lists every difference between an adapter's tensors and what a model that was built
/// with its settings needs: missing, unexpected, of another shape or type, or an output projection that should be the
/// embedding and is not. Loading and merging refuse the same. The model may be on the meta device.
void check_adapter_fits(const VisionLanguageModel& model, const AdapterTensors& tensors);

/// Throws UserError (kBadData) where values of an adapter that fits are infinite or not numbers, in the file or in the
/// model's type. Not for a run's own checkpoint, whose optimizer state has the fp32 values.
void check_adapter_values(const VisionLanguageModel& model, const AdapterTensors& tensors);

/// The parameters of a model that an adapter brings: low-rank ones and those of modules_to_save.
std::vector<nn::Parameter> adapter_parameters(const VisionLanguageModel& model);

/// Throws UserError (kBadData) where an adapter's folder holds weights in files that are not the adapter's, which would
/// be ignored: a projector that LLaVA's or ms-swift's scripts train next to LoRA, a value head, a part of the vision
/// tower. It names the file and what to do. States of optimizers and the like are passed over.
void refuse_foreign_weights(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
