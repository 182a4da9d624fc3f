#pragma once

#include <span>
#include <string>

namespace vlmtrain::models {

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

}  // namespace vlmtrain::models
