#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// Returns the content of a file. Throws data_error if it is missing, not a regular file,
/// unreadable, or a Git LFS pointer, and run_error if the process lacks memory or descriptors.
std::string read_file(const std::filesystem::path& path);

/// Returns true if a file that starts with `first_bytes` (at least 40) is a Git LFS pointer: the
/// small text that a clone without `git lfs pull` has in place of a large file
/// (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
bool is_git_lfs_pointer(std::string_view first_bytes);

/// Throws data_error if is_git_lfs_pointer(first_bytes). The error names `path`.
void throw_if_lfs_pointer(const std::filesystem::path& path, std::string_view first_bytes);

/// Takes an exclusive lock on the whole file of `descriptor`, which must be open for writing,
/// without waiting. Returns 0 or an errno: EAGAIN or EACCES if the lock is held elsewhere. The lock
/// belongs to the open file description (F_OFD_SETLK): it ends when that is closed, and closing
/// another descriptor of the file does not release it. Works on NFS.
int lock_file(int descriptor);

/// Result of probe_folder().
struct FolderProbeResult {
  std::filesystem::path folder;  ///< the probed folder: the requested one or its nearest existing parent
  int64_t free_bytes = 0;        ///< available to this user; -1 if unknown
  std::string write_error;       ///< reason why a file could not be written, flushed and renamed; empty on success
  std::string lock_error;        ///< reason why the file could not be locked; empty on success
  double seconds = 0;            ///< duration of the probe
};

/// Writes, renames, locks and removes a file of 1 MiB in `folder`, as a run does: its lock prevents
/// a second run in the same folder. If `folder` does not exist, its nearest existing parent is
/// probed. Errors are returned, not thrown.
FolderProbeResult probe_folder(const std::filesystem::path& folder);

/// Returns true if `text` has the form `Owner/Name` of a repository on the Hugging Face Hub, and
/// the working directory has no folder `Owner`. Does not access the network.
bool is_hub_model_id(const std::string& text);

/// Returns the folder for cached files of this user: $VLMTRAIN_CACHE, else vlmtrain in
/// $XDG_CACHE_HOME or ~/.cache (XDG Base Directory Specification, which ignores relative paths).
/// Returns "" if no variable is set. The folder may not exist.
std::filesystem::path get_user_cache_folder();

/// Files compiled into the binary (cmake/Resources.cmake), by their path below the embedded folder.
/// The content lives as long as the program.
using EmbeddedResources = std::map<std::string, std::string_view, std::less<>>;

}  // namespace vlmtrain::io
