#pragma once

#include <filesystem>
#include <vector>

namespace vlmtrain::io {

/// The files that a data set's path means, in natural order: itself; or what a pattern (glob(7)) matches; or a folder's
/// Parquet files, or its tars, or its JSON Lines. data_error where there is none, or where it is not plain which are
/// meant: a folder of several formats, or one with the splits of a data set side by side.
std::vector<std::filesystem::path> find_data_files(const std::filesystem::path& path);

}  // namespace vlmtrain::io
