#pragma once

#include <filesystem>

namespace vlmtrain::io {

/// Names a path to remove_unfinished() until it is forgotten; what was not noted may be forgotten.
void note_unfinished(const std::filesystem::path& path);
void forget_unfinished(const std::filesystem::path& path);

}  // namespace vlmtrain::io
