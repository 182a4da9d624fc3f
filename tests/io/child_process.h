#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <exception>
#include <functional>

namespace vlmtrain::io {

/// Exit status of a child process whose test does not apply to this machine.
inline constexpr int kSkippedStatus = 77;

/// Runs `action` in a child process, which ends without destructors, as a killed one does. Returns its exit status.
inline int run_in_child(const std::function<int()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = action();
    } catch (const std::exception& error) {
      fmt::print(stderr, "child: {}\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace vlmtrain::io
