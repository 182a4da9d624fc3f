#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Whether the model that `folder`/config.json describes draws masks. Throws UserError (kBadData).
bool predicts_masks(const std::filesystem::path& folder);

/// Modules of that model which LoRA trains whole, beside its adapters, as nn::LoraSettings::modules_to_save: what makes
/// masks, but for what `frozen` keeps. Of a folder without config.json none.
std::vector<std::string> get_default_modules_to_save(const std::filesystem::path& folder, const FrozenParts& frozen);

}  // namespace vlmtrain::models
