#pragma once

#include <filesystem>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// Why a file cannot be read, with the remedy: kBadData, or kFailed where the process may have no more memory or files.
/// `error` is an errno.
UserError read_error(const std::filesystem::path& path, int error);

}  // namespace vlmtrain::io
