#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::models {

/// What checkpoints of one module tree write in the place of a beginning of its parameters' names.
struct KeyAliases {
  std::string_view parameter;
  std::vector<std::string_view>
      checkpoint_prefixes;  ///< the published one first; before any other that is its beginning
};

/// How a checkpoint spells the parameters' names. transformers has changed the modules' places several times, so that a
/// family has to know more than one.
class StateDictKeyMap {
 public:
  /// All parameters by their own names.
  StateDictKeyMap() = default;
  /// The spelling of a checkpoint with these tensors; of the published checkpoints where there are none.
  static StateDictKeyMap detect(std::span<const KeyAliases> table, std::span<const std::string> tensors);

  std::string to_checkpoint_key(const std::string& parameter) const;

 private:
  std::vector<std::pair<std::string_view, std::string_view>> prefixes_;  // the parameter's, the checkpoint's
};

/// A beginning of tensors' names, and what the model has in its place.
struct PrefixMapping {
  std::string file_prefix;   ///< in the file; may be empty
  std::string model_prefix;  ///< in the model; may be empty
  size_t num_matches = 0;    ///< that fit with it
};

/// Returns the change of one prefix that makes most of `file_names` fit a name in `module_names`. `tensors` is 0 where
/// none does.
PrefixMapping find_prefix_mapping(std::span<const std::string> file_names, std::span<const std::string> module_names);

/// Throws UserError (kBadData) where more than half of the names in `expected` are missing from `file_names`, and
/// either the change of a prefix makes most of them fit or `may_be_missing` is false: names of both sides are shown.
/// `module_names` are the names of `expected` as the model's modules have them. `folder` is that of the checkpoint.
void refuse_mismatched_names(const std::string& folder, std::span<const std::string> expected,
                             std::span<const std::string> module_names, std::span<const std::string> file_names,
                             bool may_be_missing);

/// Returns whether both tables have the same values, up to rounding in the type of `stored`.
bool is_close(const at::Tensor& stored, const at::Tensor& computed);

/// Returns whether a table of is_computed_table() has the values that older transformers wrote: positions 0, 1, 2, …,
/// or rotary frequencies theta^(-i/n) for a theta of `config`, the content of config.json.
bool is_default_table(std::string_view name, const at::Tensor& table, const nlohmann::json& config);

}  // namespace vlmtrain::models
