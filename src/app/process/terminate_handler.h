#pragma once

namespace vlmtrain::app {

/// Said of a thread that the system does not start.
extern const char* const kThreadLimitMessage;

}  // namespace vlmtrain::app
