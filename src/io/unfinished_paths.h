#pragma once

#include <filesystem>
#include <functional>

namespace vlmtrain::io {

/// Names a path to remove_temp_files() until it is forgotten; what was not noted may be forgotten. `create` makes what
/// is there, and nothing is removed between the one and the other.
void register_temp_path(const std::filesystem::path& path, const std::function<void()>& create);
void unregister_temp_path(const std::filesystem::path& path);

}  // namespace vlmtrain::io
