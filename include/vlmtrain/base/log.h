#pragma once

#include <spdlog/spdlog.h>

#include <filesystem>

namespace vlmtrain {

/// Sends the log to stderr, so that stdout stays free for results. `quiet` keeps only warnings and
/// errors. Call once at startup. The logging functions themselves, such as spdlog::info, are
/// thread-safe.
void init_logging(bool quiet);

/// Appends all later messages of level info and above to `file`, no longer to stderr. Throws
/// spdlog::spdlog_ex if the file cannot be opened for writing.
void log_to_file(const std::filesystem::path& file);

}  // namespace vlmtrain
