#pragma once

#include <string>
#include <vector>

namespace vlmtrain::app {

/// Runs the program: parses the command line (without the program's name), runs the command and
/// reports errors on stderr. Returns the exit code (base/error.h).
int run(std::vector<std::string> arguments);

}  // namespace vlmtrain::app
