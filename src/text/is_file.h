#pragma once

#include <filesystem>

namespace vlmtrain::text {

/// Returns whether `path` is there. Throws UserError (kBadData) for what is there and cannot be read as a file, such as
/// a link into a cache that lacks the file: it is not the same as nothing.
bool is_file(const std::filesystem::path& path);

}  // namespace vlmtrain::text
