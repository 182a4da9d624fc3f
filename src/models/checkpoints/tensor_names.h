#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::models {

/// A prefix of the model's parameter names, with the prefixes that checkpoints use for it.
struct PrefixAliases {
  std::string_view parameter;  ///< prefix of parameter names
  /// Alternatives: that of published checkpoints first, a longer prefix before its own prefix.
  std::vector<std::string_view> checkpoint_prefixes;
};

/// The mapping from parameter names to a checkpoint's tensor names. transformers has moved modules
/// several times, so the checkpoints of a family may have different prefixes. Immutable. Refers to
/// the strings of the table, which must be literals.
class StateDictKeyMap {
 public:
  /// Maps all parameters to their own names.
  StateDictKeyMap() = default;
  /// Returns the mapping for a checkpoint with tensors of these names. Prefixes that no tensor has
  /// are mapped as in the published checkpoints.
  static StateDictKeyMap detect(std::span<const PrefixAliases> table, std::span<const std::string> tensors);

  /// Returns the tensor name of a parameter: the first matching prefix is replaced.
  std::string to_checkpoint_key(const std::string& parameter) const;

 private:
  std::vector<std::pair<std::string_view, std::string_view>> prefix_pairs_;  // parameter prefix, checkpoint prefix
};

/// A prefix of tensor names and the model's prefix for it.
struct PrefixMapping {
  std::string file_prefix;   ///< may be empty
  std::string model_prefix;  ///< may be empty
  size_t num_matches = 0;    ///< names that equal a name of the model after this mapping
};

/// Returns the prefix mapping that makes the most names of `file_tensor_names` equal to a name in
/// `model_tensor_names`. num_matches is 0 if no mapping does.
PrefixMapping find_prefix_mapping(std::span<const std::string> file_tensor_names,
                                  std::span<const std::string> model_tensor_names);

/// Throws UserError (kBadData) with examples of both if more than half of the names in `expected`
/// are missing from `file_tensor_names`, and either one prefix mapping explains a third of the
/// missing names or `may_all_be_missing` is false. `model_tensor_names` are the names of `expected`
/// in the model. `folder` names the checkpoint in the message.
void reject_mismatched_names(const std::string& folder, std::span<const std::string> expected,
                             std::span<const std::string> model_tensor_names,
                             std::span<const std::string> file_tensor_names, bool may_all_be_missing);

/// Returns whether both tables have the same values, up to rounding in the dtype of `stored`.
bool are_close(const at::Tensor& stored, const at::Tensor& computed);

/// Returns whether a computed table (is_computed_table()) has the values that older transformers
/// releases wrote: positions 0, 1, 2, …, or RoPE frequencies theta^(-i/n) for a theta of `config`,
/// the content of config.json.
bool is_default_table(std::string_view name, const at::Tensor& table, const nlohmann::json& config);

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
