#pragma once

#include <string>
#include <vector>

namespace vlmtrain::app {

/// Runs the parts of the program that need no LibTorch, whose loading takes longer than these
/// answers: help, version, options, and errors of the command line or configuration. For all else
/// it executes vlmtrain-core in the same folder (app/run.h) in this process, with the same
/// arguments, environment and streams. Returns an exit code (base/error.h) otherwise. `arguments`
/// are those after the program's name, `argv` all of them.
int run_front_end(const std::vector<std::string>& arguments, char** argv);

}  // namespace vlmtrain::app
