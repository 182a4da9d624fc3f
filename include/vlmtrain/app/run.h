#pragma once

#include <string>
#include <vector>

namespace vlmtrain::app {

/// Runs the program vlmtrain-core: parses `arguments`, the command line without the program's name,
/// runs the command and reports errors on stderr. Returns the exit code (base/error.h).
///
/// REQUIRES: called once, on the main thread, before other threads start.
int run_program(std::vector<std::string> arguments);

}  // namespace vlmtrain::app
