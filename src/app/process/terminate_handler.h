#pragma once

namespace vlmtrain::app {

// terminate_handler.cpp installs a handler of std::terminate() before the initializers of libraries
// run. It prints an error message and exits with an exit code (base/error.h).

/// Error message for the case that the system cannot start another thread.
extern const char* const kThreadLimitMessage;

}  // namespace vlmtrain::app
