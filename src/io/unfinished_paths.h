#pragma once

#include <filesystem>
#include <functional>

namespace vlmtrain::io {

/// Names a path to remove_unfinished() until it is forgotten; what was not noted may be forgotten. `create` makes what
/// is there, and nothing is removed between the one and the other.
void note_unfinished(const std::filesystem::path& path, const std::function<void()>& create);
void forget_unfinished(const std::filesystem::path& path);

}  // namespace vlmtrain::io
