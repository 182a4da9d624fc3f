#pragma once

#include <filesystem>
#include <string>

namespace vlmtrain::io {

/// The whole content of a file. data_error names it where it is missing, a folder, pipe or device, unreadable, or a Git
/// LFS pointer.
std::string read_file(const std::filesystem::path& path);

}  // namespace vlmtrain::io
