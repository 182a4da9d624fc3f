#pragma once

#include <filesystem>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Throws UserError where an entry of the model's LoraSettings matches nothing: a slip of the pen (kUsage), or an
/// adapter for another model (kBadData). It lists near names.
void check_lora_targets(const VisionLanguageModel& model, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
