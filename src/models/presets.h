#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>

#include "vlmtrain/io/file.h"

namespace vlmtrain::models {

/// Returns the contents of the files in configs/models, which are compiled into the binary, by
/// their names PRESET/FILE.
const io::EmbeddedResources& resources();

/// Writes the files of a preset into the existing `folder`, tokenizer included, without weights.
/// `tokenizer` is a tokenizer.json for presets without one, else empty. Throws as
/// write_preset_checkpoint().
void write_preset_files(const std::string& preset, const std::filesystem::path& tokenizer,
                        const std::filesystem::path& folder);

/// Returns config.json of a preset. Throws UserError (kUsage) for an unknown preset.
nlohmann::ordered_json load_preset_config(const std::string& preset);

/// Returns `mask_config` of a preset. Throws UserError (kUsage) if the preset's model predicts no
/// masks.
nlohmann::ordered_json load_preset_mask_config(const std::string& preset);

}  // namespace vlmtrain::models
