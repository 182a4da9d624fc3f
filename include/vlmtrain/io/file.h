#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Returns the content of a file. Throws data_error if it is missing, not a regular file,
/// unreadable, or a Git LFS pointer.
std::string read_file(const std::filesystem::path& path);

/// Returns true for the content of a Git LFS pointer, the small text that a clone without `git lfs
/// pull` has in place of a large file (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
bool is_git_lfs_pointer(std::string_view first_bytes);

/// Throws data_error if `first_bytes` of the file at `path` are those of a Git LFS pointer.
void refuse_lfs_pointer(const std::filesystem::path& path, std::string_view first_bytes);

/// Locks the whole file of an open descriptor for this process without waiting. Returns 0 or an
/// errno: EAGAIN or EACCES if another process has the lock. The lock belongs to the open file
/// description, so it ends with it, and closing another descriptor of the file does not release it.
/// Works on NFS.
int lock_file(int descriptor);

/// Result of probe_folder().
struct FolderProbe {
  std::filesystem::path folder;  ///< the probed folder: the requested one or its nearest existing parent
  int64_t free_bytes = 0;        ///< for this user; -1 if unknown
  std::string failure;           ///< empty if a file was written, flushed, renamed and removed
  std::string lock_failure;      ///< empty if the file was locked, which a run needs to refuse a second one
  double seconds = 0;
};

/// Writes, locks, renames and removes a small file in `folder`. If `folder` does not exist, the
/// nearest existing parent is probed, in which a run would create it. Never throws.
FolderProbe probe_folder(const std::filesystem::path& folder);

/// Returns true if `text` is a name `Owner/Name` of the Hugging Face Hub and no folder `Owner`
/// exists.
bool is_hub_name(const std::string& text);

/// Returns the folder for cached files of this user: $VLMTRAIN_CACHE, else vlmtrain in
/// $XDG_CACHE_HOME or ~/.cache (XDG Base Directory Specification, which ignores relative paths).
/// Returns "" if no variable is set. The folder may not exist.
std::filesystem::path get_user_cache_folder();

}  // namespace vlmtrain::io
