#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

#include "vlmtrain/io/resources.h"

namespace vlmtrain::models {

/// The files of configs/models, `PRESET/FILE`, compiled into the binary.
const io::Resources& resources();

/// The files of a preset, with its tokenizer, in `folder`: what write_preset() writes, without weights. Its errors.
void write_preset_files(const std::string& preset, const std::filesystem::path& tokenizer,
                        const std::filesystem::path& folder);

/// config.json of a preset. UserError (kUsage) where there is no such preset.
nlohmann::ordered_json load_preset_config(const std::string& preset);

/// `mask_config` of a preset whose model draws masks; UserError (kUsage) for another one.
nlohmann::ordered_json load_preset_mask_config(const std::string& preset);

}  // namespace vlmtrain::models
