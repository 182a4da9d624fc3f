#pragma once

#include <filesystem>
#include <string_view>

namespace vlmtrain::io {

/// Returns true for the content of a Git LFS pointer: the small text that a clone without `git lfs pull` has in the
/// place of a large file (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
bool is_git_lfs_pointer(std::string_view first_bytes);

/// Throws UserError (kBadData) where `first_bytes` of the file at `path` are those of a Git LFS pointer.
void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view first_bytes);

}  // namespace vlmtrain::io
