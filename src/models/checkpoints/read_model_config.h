#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>

namespace vlmtrain::models {

/// config.json of a checkpoint's folder. UserError (kBadData) that says what the path is instead where it is none: a
/// name on the Hugging Face Hub, a GGUF or weights file, a run's folder (its newest checkpoint is named), the Hub's
/// cache.
nlohmann::json read_model_config(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
