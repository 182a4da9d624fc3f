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

/// The tensors of a checkpoint that are one where the output projection is tied to the embedding.
struct OutputTensors {
  std::string embedding;  ///< [vocabulary, hidden]
  std::string output;     ///< [vocabulary, hidden]
};

/// Returns true for the name of an output projection, in a checkpoint or in a model: `…lm_head.weight`.
bool is_output_projection(std::string_view name);

/// Returns the two tensors among `names`; nothing where one of them is not there.
std::optional<OutputTensors> find_output_tensors(std::span<const std::string> names);

/// Returns whether both have equal values, as transformers compares them (modeling_utils.py, tie_weights). Reads the
/// files up to the first difference; the process keeps the answer.
bool are_output_tensors_equal(const OutputTensors& tensors, const std::filesystem::path& folder);

/// Returns whether the model has no output projection of its own.
bool has_tied_output(const VisionLanguageModel& model);

/// Returns whether a model of `config` may tie its output projection: false where no key asks for it.
bool may_tie_output(const nlohmann::json& config);

/// The key that ties the output projection of a model of `config`.
std::string_view get_tie_key(const nlohmann::json& config);

/// Sets the keys that tie the output projection to `tied`, in the places where transformers 5 and nanoVLM read them, so
/// far as they or their defaults differ.
void set_tied_output(nlohmann::ordered_json& config, bool tied);
void set_tied_output(nlohmann::json& config, bool tied);

/// Returns the config.json of a checkpoint as its weights are: where it ties an output projection that the files hold
/// with other values than the embedding, the two are not tied, as in transformers. Reads tensors only where both are in
/// the files and config.json ties them.
nlohmann::json reconcile_config(nlohmann::json config, const Family& family, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
