#pragma once

#include <filesystem>
#include <optional>

#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/lora_settings.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// In what model.path may differ from its config.json: as the configuration says, and in what an adapter brings whole.
/// A checkpoint of the run itself (`is_strict`) in nothing.
models::LoadSettings make_load_settings(const Config& config, const std::optional<nn::LoraSettings>& lora,
                                        bool is_strict);

/// Says in the log what does not come from the checkpoint. Throws UserError (kUsage) where that is not kept: with LoRA,
/// what is not one of lora.modules_to_save.
void check_new_weights(const models::LoadResult& loaded_weights, bool with_lora,
                       const std::filesystem::path& checkpoint);

}  // namespace vlmtrain::train
