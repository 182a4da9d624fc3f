#pragma once

#include <string>
#include <vector>

namespace vlmtrain::app {

/// The program as it is called, without LibTorch, which takes a quarter of a second to load: answers what needs none of
/// it (help, the version, the options, words and configurations that are wrong), and else becomes the program that does
/// the work, vlmtrain-core in the same folder (app/run.h), with the same words, environment and streams. Returns an
/// exit code (base/error.h) where it does not. `words` are those behind the program's name, `argv` all of them.
int front(const std::vector<std::string>& words, char** argv);

}  // namespace vlmtrain::app
