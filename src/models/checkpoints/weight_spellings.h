#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::models {

/// What checkpoints of one module tree write in the place of a beginning of its parameters' names.
struct Spellings {
  std::string_view parameter;
  std::vector<std::string_view> known;  ///< the published one first; before any other that is its beginning
};

/// How a checkpoint spells the parameters' names. transformers has changed the modules' places several times, so that a
/// family has to know more than one.
class WeightSpellings {
 public:
  /// All parameters by their own names.
  WeightSpellings() = default;
  /// The spelling of a checkpoint with these tensors; of the published checkpoints where there are none.
  static WeightSpellings of(std::span<const Spellings> table, std::span<const std::string> tensors);

  std::string spelled(const std::string& parameter) const;

 private:
  std::vector<std::pair<std::string_view, std::string_view>> prefixes_;  // the parameter's, the checkpoint's
};

}  // namespace vlmtrain::models
