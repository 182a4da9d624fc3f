#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace vlmtrain::train {

/// The file in the user's cache that keeps what was found out about the samples of a data set, for all its runs and
/// plans: one for each data set, of the settings that were looked with last, so that there are never many. Empty for a
/// data set that is looked at in less than a second anyway, and where there is no cache and none can be
/// made.
std::filesystem::path shared_outlines(const std::string& data_set, int64_t samples);

/// Makes `to` what `from` is, atomically. A file that cannot be read or written is a line in the log, no error.
void copy_outlines(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace vlmtrain::train
