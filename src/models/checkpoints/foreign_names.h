#pragma once

#include <span>
#include <string>

namespace vlmtrain::models {

/// A beginning of tensors' names, and what the model has in its place.
struct PrefixChange {
  std::string stored;  ///< in the file; may be empty
  std::string own;     ///< in the model; may be empty
  size_t tensors = 0;  ///< that fit with it
};

/// Returns the change of one prefix that makes most of `stored` fit a name in `own`. `tensors` is 0 where none does.
PrefixChange find_prefix_change(std::span<const std::string> stored, std::span<const std::string> own);

/// Throws UserError (kBadData) where more than half of the names in `wanted` are missing from `stored`, and either the
/// change of a prefix makes most of them fit or `may_be_missing` is false: names of both sides are shown. `own` are
/// the names of `wanted` as the model's modules have them. `folder` is that of the checkpoint.
void refuse_foreign_names(const std::string& folder, std::span<const std::string> wanted,
                          std::span<const std::string> own, std::span<const std::string> stored, bool may_be_missing);

}  // namespace vlmtrain::models
