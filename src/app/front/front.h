#pragma once

#include <string>
#include <vector>

namespace vlmtrain::app {

/// The program as it is called, without LibTorch, whose loading takes longer than these answers: help, the version, the
/// options, and what is wrong with words or a configuration. For all else it becomes the program that does the work,
/// vlmtrain-core in the same folder (app/run.h), with the same words, environment and streams. Returns an exit code
/// (base/error.h) where it does not. `arguments` are those behind the program's name, `argv` all of them.
int run_front_end(const std::vector<std::string>& arguments, char** argv);

}  // namespace vlmtrain::app
