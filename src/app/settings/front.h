#pragma once

#include <functional>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// Runs the program vlmtrain. Handles everything that does not need LibTorch, because loading
/// LibTorch takes longer: help, version, options, and errors of the command line or configuration.
/// Returns the exit code of these (base/error.h), otherwise that of `run_core()`, which runs the
/// same command in the program vlmtrain-core (app/run.h). `arguments` are those of main() without the
/// program's name.
int run_front_end(const std::vector<std::string>& arguments, const std::function<int()>& run_core);

/// Replaces this process by vlmtrain-core in the program's folder, with the same arguments,
/// environment and streams. `argv` is that of main(). Throws UserError (kFailed) if that fails.
[[noreturn]] void exec_core(char** argv);

}  // namespace vlmtrain::app
