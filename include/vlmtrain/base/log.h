#pragma once

#include <spdlog/spdlog.h>

#include <filesystem>

namespace vlmtrain {

/// Sends the log to stderr, so that stdout stays free for results. Call once, at the program's start; `quiet` keeps
/// warnings and errors only. Log with spdlog::info and its sisters, which are thread-safe.
void init_logging(bool quiet);

/// Sends the log to the end of a file from now on; what was logged before stays where it is. Throws what
/// spdlog throws where it cannot be written.
void log_to_file(const std::filesystem::path& file);

}  // namespace vlmtrain
