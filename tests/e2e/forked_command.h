#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "app/settings/front.h"
#include "vlmtrain/app/run.h"
#include "vlmtrain/base/process.h"

namespace vlmtrain::e2e {

/// Runs `vlmtrain ARGUMENTS` in this process and exits with its code: the front, and what
/// vlmtrain-core does after main() begins. REQUIRES: this process was forked from a test program
/// with a single thread.
///
/// A forked child per command isolates what commands leave behind: the folder, the environment,
/// signal handlers, LibTorch's defaults, threads and allocators. Commands may call exit(), die and
/// be killed. LibTorch is loaded once, in the test program, and its static objects are never
/// destroyed: both take longer than most commands. Processes that the command itself starts (ranks,
/// dry runs, look-aheads, restarts on a virtual GPU) are the real vlmtrain-core.
[[noreturn]] inline void run_forked_command(const std::vector<std::string>& arguments) noexcept {
  std::vector<std::string> command_line{VLMTRAIN_BINARY};
  command_line.insert(command_line.end(), arguments.begin(), arguments.end());
  set_program(std::filesystem::path(VLMTRAIN_BINARY).parent_path() / "vlmtrain-core", command_line);
  const int exit_code = app::run_front_end(arguments, [&] { return app::run_program(arguments); });
  std::fflush(nullptr);
  _exit(exit_code);
}

/// Whether this process can fork commands: LibTorch's threads would not exist in the child, and the
/// loader reads its variables only when a program starts.
inline bool can_fork_commands() {
  static const auto read_loader_variables = [] {
    std::vector<std::string> values;
    for (const char* const name : {"LD_LIBRARY_PATH", "LD_PRELOAD"}) {
      const char* const value = std::getenv(name);
      values.emplace_back(value == nullptr ? "" : value);
    }
    return values;
  };
  static const std::vector<std::string> loaded_with = read_loader_variables();
  const std::filesystem::directory_iterator threads("/proc/self/task"), end;
  return read_loader_variables() == loaded_with && std::distance(threads, end) == 1;
}

}  // namespace vlmtrain::e2e
