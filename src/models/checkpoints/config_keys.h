#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace vlmtrain::models {

/// Throws UserError (kBadData) where a key of config.json, or of its text_config, that no family reads changes what a
/// model computes: another scale of the logits, attention without rotary positions, another file of weights. `file`
/// names config.json.
void refuse_unsupported_keys(const nlohmann::json& config, const std::string& file);

/// Returns a sentence that lists the keys of config.json, text_config, vision_config and their rope settings that no
/// family reads and that are not known to be harmless; nothing where there are none. Null, false and empty values are
/// not listed. nanoVLM's config, which refuses other keys, has none.
std::vector<std::string> list_unread_config_keys(const nlohmann::json& config, const std::string& file);

}  // namespace vlmtrain::models
