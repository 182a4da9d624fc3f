#pragma once

#include <cstdint>
#include <filesystem>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// Returns the error for a file that cannot be read, with a suggestion: a data_error, or a
/// run_error if the process lacks memory or descriptors. `error` is an errno.
UserError make_read_error(const std::filesystem::path& path, int error);

/// Returns the run_error for a failed write of `target_path`, with a suggestion. `error` is an
/// errno. `requested_bytes` is the intended size of the file, or 0 if unknown. The message names
/// the final path even if `target_path` is in a temporary folder, and the free space if the disk is
/// full.
UserError make_write_error(const std::filesystem::path& target_path, int error, int64_t requested_bytes);

/// Throws run_error if the file system of the existing `folder` has less than `bytes` free. Does
/// nothing if the free space is unknown.
void check_free_space(const std::filesystem::path& folder, int64_t bytes);

/// Flushes a file or folder to the disk. Throws run_error that names `reported_path`. Does nothing
/// if the file system cannot flush folders.
void sync_to_disk(const std::filesystem::path& path, const std::filesystem::path& reported_path);

/// Returns the parent folder of `path`, or "." for a plain name.
std::filesystem::path get_parent_folder(const std::filesystem::path& path);

}  // namespace vlmtrain::io
