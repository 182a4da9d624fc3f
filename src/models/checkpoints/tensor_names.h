#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

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

}  // namespace vlmtrain::models
