#pragma once

#include <spdlog/spdlog.h>

namespace vlmtrain {

/// Sends the log to stderr, so that stdout stays free for results. Call once, at the program's start; `quiet` keeps
/// warnings and errors only. Log with spdlog::info and its sisters, which are thread-safe.
void start_log(bool quiet);

}  // namespace vlmtrain
