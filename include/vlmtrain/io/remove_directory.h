#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace vlmtrain::io {

/// What is left of a folder that was to go.
struct RemovalFailure {
  std::filesystem::path path;
  std::string reason;
};

/// Removes a folder; nobody sees half of it under its name, for it is renamed first. Nothing where all of it is gone.
/// NFS keeps files that another process has open, and a mount point is busy: what remains is for another call with its
/// path, or for clean_up_temporaries().
std::optional<RemovalFailure> remove_directory(const std::filesystem::path& path);

}  // namespace vlmtrain::io
