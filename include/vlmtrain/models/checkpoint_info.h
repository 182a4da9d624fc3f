#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Returns a sentence for each thing in the checkpoint `folder` that is read otherwise than its files say: an output
/// projection that config.json ties and the weights do not, a quantization_config without quantized weights, files of
/// weights and keys of config.json that are not read. Empty for ordinary checkpoints. Reads names and headers, and the
/// two tables of tokens where config.json ties them and the files hold both. Throws UserError as build_model.
std::vector<std::string> list_checkpoint_remarks(const std::filesystem::path& folder);

/// Whether the model that `folder`/config.json describes draws masks. Throws UserError (kBadData).
bool predicts_masks(const std::filesystem::path& folder);

/// Modules of that model which LoRA trains whole, beside its adapters, as nn::LoraSettings::modules_to_save: what makes
/// masks, but for what `frozen` keeps. Of a folder without config.json none.
std::vector<std::string> get_default_modules_to_save(const std::filesystem::path& folder, const FrozenParts& frozen);

}  // namespace vlmtrain::models
