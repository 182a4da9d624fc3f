#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h
struct Family;              // models/family.h

/// The names of the embedding and the output projection in a checkpoint that stores both.
struct OutputTensorNames {
  std::string embedding;  ///< [vocabulary, hidden]
  std::string output;     ///< [vocabulary, hidden]
};

/// Returns whether `name`, of a checkpoint or a model, is an output projection: `…lm_head.weight`.
bool is_output_projection(std::string_view name);

/// Returns the two tensors among `names`; nothing if one of them is absent.
std::optional<OutputTensorNames> find_output_tensor_names(std::span<const std::string> names);

/// Returns whether both tensors of the checkpoint in `folder` have equal values; transformers
/// decides with this comparison (modeling_utils.py, tie_weights). Reads the files up to the first
/// difference. The result is cached for the process.
bool are_output_tensors_equal(const OutputTensorNames& tensors, const std::filesystem::path& folder);

/// Returns whether the model has no output projection of its own.
bool has_tied_output(const VisionLanguageModel& model);

/// Returns whether `config` may tie the output projection, by its key or by the default of its
/// model type.
bool may_tie_output(const nlohmann::json& config);

/// Returns the key of config.json that ties the output projection: nanoVLM's or transformers'.
std::string_view get_tie_config_key(const nlohmann::json& config);

/// Sets the keys that tie the output projection to `tied`, in the locations where transformers 5
/// and nanoVLM read them. Leaves keys that already have this effect, by value or default.
void set_tied_output(nlohmann::ordered_json& config, bool tied);
void set_tied_output(nlohmann::json& config, bool tied);

/// Returns `config` changed to match the weights in `folder`: unties an output projection whose
/// stored values differ from the embedding, as transformers does. Reads tensors only if both are
/// stored and `config` ties them.
nlohmann::json reconcile_tied_output(nlohmann::json config, const Family& family, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
