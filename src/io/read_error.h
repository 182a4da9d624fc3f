#pragma once

#include <filesystem>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// Why a file cannot be read (kBadData), with the remedy. `error` is an errno.
UserError read_error(const std::filesystem::path& path, int error);

}  // namespace vlmtrain::io
