#pragma once

#include <cstdint>
#include <filesystem>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// The run_error for a failed write of `path`: `error` is the errno, `wanted_bytes` the size that the file was to have.
/// Where the disk, the quota or the file size limit is exhausted it tells what is free and what to do.
UserError write_error(const std::filesystem::path& path, int error, int64_t wanted_bytes);

/// Flushes a file or folder to the disk; `named` is the path that an error names. A file system that cannot flush
/// folders is not an error.
void sync_path(const std::filesystem::path& path, const std::filesystem::path& named);

/// The folder in which `path` stands: "." for a plain name.
std::filesystem::path folder_of(const std::filesystem::path& path);

}  // namespace vlmtrain::io
