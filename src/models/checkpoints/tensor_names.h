#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::models {

/// The prefixes that checkpoints use for one prefix of the model's parameter names.
struct KeyAliases {
  std::string_view parameter;
  std::vector<std::string_view>
      checkpoint_prefixes;  ///< the published one first; a longer prefix before its own prefix
};

/// The mapping from parameter names to a checkpoint's tensor names. transformers has moved modules
/// several times, so a family has several prefixes.
class StateDictKeyMap {
 public:
  /// Maps all parameters to their own names.
  StateDictKeyMap() = default;
  /// Returns the mapping of a checkpoint with these tensors; that of the published checkpoints if
  /// `tensors` is empty.
  static StateDictKeyMap detect(std::span<const KeyAliases> table, std::span<const std::string> tensors);

  std::string to_checkpoint_key(const std::string& parameter) const;

 private:
  std::vector<std::pair<std::string_view, std::string_view>> prefixes_;  // parameter prefix, checkpoint prefix
};

/// A prefix of tensor names and the model's prefix for it.
struct PrefixMapping {
  std::string file_prefix;   ///< may be empty
  std::string model_prefix;  ///< may be empty
  size_t num_matches = 0;    ///< names that match a parameter with this mapping
};

/// Returns the mapping of one prefix that makes most of `file_names` match a name in
/// `module_names`. num_matches is 0 if none does.
PrefixMapping find_prefix_mapping(std::span<const std::string> file_names, std::span<const std::string> module_names);

/// Throws UserError (kBadData), which shows names of both sides, if more than half of the names in
/// `expected` are missing from `file_names` and either a prefix mapping makes most of them match or
/// `may_be_missing` is false. `module_names` are the module names of `expected`. `folder` is the
/// checkpoint's.
void refuse_mismatched_names(const std::string& folder, std::span<const std::string> expected,
                             std::span<const std::string> module_names, std::span<const std::string> file_names,
                             bool may_be_missing);

/// Returns whether both tables have the same values, up to rounding in the dtype of `stored`.
bool is_close(const at::Tensor& stored, const at::Tensor& computed);

/// Returns whether a computed table (is_computed_table()) has the values that older transformers
/// releases wrote: positions 0, 1, 2, …, or RoPE frequencies theta^(-i/n) for a theta of `config`,
/// the content of config.json.
bool is_default_table(std::string_view name, const at::Tensor& table, const nlohmann::json& config);

}  // namespace vlmtrain::models
