#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>

#include "models/registry.h"

namespace vlmtrain::models {

/// Returns the config.json of a checkpoint as its weights are: where it ties an output projection that the files hold
/// with other values than the embedding, the two are not tied, as in transformers. Reads tensors only where both are in
/// the files and config.json ties them.
nlohmann::json reconcile_config(nlohmann::json config, const Family& family, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
