#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace vlmtrain::models {

/// Throws UserError (kBadData) if config.json or its text_config has an unsupported key that
/// changes the model's computation, such as a scale of the logits or the name of another weights
/// file. `file` names config.json in errors.
void reject_unsupported_keys(const nlohmann::json& config, const std::string& file);

/// Returns a list with one sentence that names the keys of config.json, text_config, vision_config
/// and their RoPE settings that are neither read nor known to be harmless; empty if there are none.
/// Ignores keys with null, false or empty values. Ignores nanoVLM's config, since its family
/// rejects unknown keys.
std::vector<std::string> list_unread_config_keys(const nlohmann::json& config, const std::string& file);

}  // namespace vlmtrain::models
