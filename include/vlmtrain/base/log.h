#pragma once

#include <spdlog/spdlog.h>

#include <filesystem>

namespace vlmtrain {

/// Sends the log to stderr, so that stdout stays free for results. `quiet` keeps only warnings and
/// errors. Call once at startup. The logging functions themselves, such as spdlog::info, are
/// thread-safe.
void init_logging(bool quiet);

/// Appends the log to a file from now on. Earlier messages stay on stderr. Throws spdlog::spdlog_ex
/// if the file cannot be written.
void log_to_file(const std::filesystem::path& file);

}  // namespace vlmtrain
