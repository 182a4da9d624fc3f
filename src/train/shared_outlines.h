#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace vlmtrain::train {

/// The file in the user's cache that keeps what was found out about the samples of a data set, for all its runs and
/// plans: one for each data set, of the settings that were looked with last, so that there are never many. Empty for a
/// data set that is looked at in less than a second anyway, and where there is no cache and none can be
/// made.
std::filesystem::path get_shared_index_file(const std::string& dataset, int64_t samples);

/// Makes `target_file` what `source_file` is, atomically. A file that cannot be read or written is a line in the log,
/// no error.
void copy_index_file(const std::filesystem::path& source_file, const std::filesystem::path& target_file);

}  // namespace vlmtrain::train
