#pragma once

#include <string>
#include <vector>

namespace vlmtrain::app {

/// The program: parses the command line (without the program's name), runs the command, reports errors on stderr and
/// returns the exit code (base/error.h).
int run(std::vector<std::string> arguments);

}  // namespace vlmtrain::app
