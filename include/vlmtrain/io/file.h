#pragma once

#include <filesystem>
#include <string>

namespace vlmtrain::io {

/// The whole content of a file. data_error names the file where it is missing, a folder, or cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace vlmtrain::io
