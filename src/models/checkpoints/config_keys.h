#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace vlmtrain::models {

/// Throws UserError (kBadData) if config.json or its text_config has an unsupported key that
/// changes the model's computation, such as another scale of the logits or another weights file.
/// `file` names config.json.
void refuse_unsupported_keys(const nlohmann::json& config, const std::string& file);

/// Returns a sentence that lists the keys of config.json, text_config, vision_config and their RoPE
/// settings that are neither read nor known to be harmless; empty if there are none. Ignores null,
/// false and empty values, and nanoVLM's config, whose unknown keys are refused.
std::vector<std::string> list_unread_config_keys(const nlohmann::json& config, const std::string& file);

}  // namespace vlmtrain::models
