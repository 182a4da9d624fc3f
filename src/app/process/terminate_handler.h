#pragma once

namespace vlmtrain::app {

/// Message for a thread that the system does not start.
extern const char* const kThreadLimitMessage;

}  // namespace vlmtrain::app
