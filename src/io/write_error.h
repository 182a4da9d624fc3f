#pragma once

#include <cstdint>
#include <filesystem>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// The run_error for a failed write of `written`, which it calls by its final name where it stands in a temporary
/// folder: `error` is the errno, `wanted_bytes` the size that the file was to have. Where the disk, the quota or the
/// file size limit is exhausted it tells what is free and what to do.
UserError write_error(const std::filesystem::path& written, int error, int64_t wanted_bytes);

/// run_error where the disk of the existing `folder` is known to have less than `bytes` free.
void require_room(const std::filesystem::path& folder, int64_t bytes);

/// Flushes a file or folder to the disk; `named` is the path that an error names. A file system that cannot flush
/// folders is not an error.
void sync_path(const std::filesystem::path& path, const std::filesystem::path& named);

/// The folder in which `path` stands: "." for a plain name.
std::filesystem::path folder_of(const std::filesystem::path& path);

}  // namespace vlmtrain::io
