#pragma once

#include <string>
#include <vector>

namespace vlmtrain::app {

/// Runs the program vlmtrain. Handles everything that does not need LibTorch, because loading
/// LibTorch takes longer: help, version, options, and errors of the command line or configuration.
/// Returns the exit code of these (base/error.h). Otherwise replaces this process by the program
/// vlmtrain-core in the same folder (app/run.h), with the same arguments, environment and streams.
/// `argv` is that of main(), and `arguments` are its strings without the program's name.
int run_front_end(const std::vector<std::string>& arguments, char** argv);

}  // namespace vlmtrain::app
