#pragma once

#include <cstdint>
#include <filesystem>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// The run_error for a failed write of `target_path`, which it calls by its final name where it stands in a temporary
/// folder: `error` is the errno, `requested_bytes` the size that the file was to have. Where the disk, the quota or the
/// file size limit is exhausted it tells what is free and what to do.
UserError write_error(const std::filesystem::path& target_path, int error, int64_t requested_bytes);

/// run_error where the disk of the existing `folder` is known to have less than `bytes` free.
void require_free_space(const std::filesystem::path& folder, int64_t bytes);

/// Flushes a file or folder to the disk; `reported_path` is the path that an error names. A file system that cannot
/// flush folders is not an error.
void sync_to_disk(const std::filesystem::path& path, const std::filesystem::path& reported_path);

/// The folder in which `path` stands: "." for a plain name.
std::filesystem::path get_parent_folder(const std::filesystem::path& path);

}  // namespace vlmtrain::io
