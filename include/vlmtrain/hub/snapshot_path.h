#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "vlmtrain/hub/repo.h"

namespace vlmtrain::hub {

/// Returns the repository and commit of a folder in the Hugging Face cache:
/// …/models--ORG--NAME/snapshots/COMMIT. Returns nothing for other paths. Does not access files.
std::optional<Repo> parse_snapshot_path(const std::filesystem::path& folder);

/// Returns the model on the Hub that a path of the user means, or nothing if it means a folder on
/// this machine: an existing one, or a missing one in an existing folder (runs/bse). "hf://" before
/// ORG/NAME always means the Hub. Throws UserError (kUsage) for an invalid reference after "hf://" and
/// for a symbolic link to a missing folder.
std::optional<Repo> find_model_reference(const std::string& path);

}  // namespace vlmtrain::hub
