#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/family.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// The names of a checkpoint's embedding and output projection, which are one tensor if they are
/// tied.
struct OutputTensors {
  std::string embedding;  ///< [vocabulary, hidden]
  std::string output;     ///< [vocabulary, hidden]
};

/// Returns whether `name`, of a checkpoint or a model, is an output projection: `…lm_head.weight`.
bool is_output_projection(std::string_view name);

/// Returns the two tensors among `names`; nothing if one of them is absent.
std::optional<OutputTensors> find_output_tensors(std::span<const std::string> names);

/// Returns whether both have equal values, as transformers compares them (modeling_utils.py,
/// tie_weights). Reads the files up to the first difference. The process caches the result.
bool are_output_tensors_equal(const OutputTensors& tensors, const std::filesystem::path& folder);

/// Returns whether the model has no output projection of its own.
bool has_tied_output(const VisionLanguageModel& model);

/// Returns whether `config` ties the output projection by key or default.
bool may_tie_output(const nlohmann::json& config);

/// Returns the key that ties the output projection of a model of `config`.
std::string_view get_tie_key(const nlohmann::json& config);

/// Sets the keys that tie the output projection to `tied`, in the locations where transformers 5
/// and nanoVLM read them, if they or their defaults differ.
void set_tied_output(nlohmann::ordered_json& config, bool tied);
void set_tied_output(nlohmann::json& config, bool tied);

/// Returns the config.json that matches a checkpoint's weights: unties an output projection that
/// the files store with other values than the embedding, as transformers does. Reads tensors only
/// if both are stored and config.json ties them.
nlohmann::json reconcile_config(nlohmann::json config, const Family& family, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
