#pragma once

#include <functional>
#include <string>

namespace vlmtrain {

/// Outcome of work that ran in a child process.
struct SubprocessResult {
  std::string stdout_text;  ///< standard output of the child
  int exit_code = -1;       ///< 0 if the work returned; -1 if the child did not exit by itself
  int signal = 0;           ///< number of the signal that terminated the child; 0 without one
  bool timed_out = false;   ///< the child was killed because its time was over

  bool succeeded() const { return exit_code == 0; }
  /// Returns a predicate for messages, such as "was ended by signal 4 (Illegal instruction)".
  std::string describe_exit() const;
};

/// Runs `work` in a forked child process and returns its outcome. The child has its own memory and
/// environment, so a crash, a hang or global state of libraries does not affect the calling
/// process. The child is killed after `timeout_seconds`.
///
/// REQUIRES: only the calling thread uses LibTorch, and LibTorch has not started threads yet,
/// because a forked child has only the calling thread. Throws UserError (kFailed) if no pipe or
/// process can be created.
SubprocessResult run_in_subprocess(const std::function<void()>& work, double timeout_seconds);

}  // namespace vlmtrain
