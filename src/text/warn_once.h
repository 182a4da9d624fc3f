#pragma once

#include <string>

namespace vlmtrain::text {

/// Logs a warning unless the same was logged before by this process: files are read several times in a run.
/// Thread-safe.
void warn_once(const std::string& message);

}  // namespace vlmtrain::text
