#pragma once

#include <filesystem>
#include <vector>

namespace vlmtrain::io {

/// Returns the files of a data set's path in natural order: the file itself, the matches of a
/// pattern (glob(7)), or the Parquet files, tars or JSON Lines files of a folder. Throws data_error
/// if there are none, or if a folder has several formats or splits.
std::vector<std::filesystem::path> find_data_files(const std::filesystem::path& path);

}  // namespace vlmtrain::io
