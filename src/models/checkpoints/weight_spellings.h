#pragma once

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

}  // namespace vlmtrain::models
