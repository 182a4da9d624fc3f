#pragma once

#include <functional>
#include <string>

namespace vlmtrain {

/// How a piece of work ended that was done in a process of its own.
struct SubprocessResult {
  std::string stdout_text;  ///< what it wrote to its standard output
  int exit_code = -1;       ///< 0: the work returned
  int signal = 0;           ///< that ended it
  bool timed_out = false;   ///< its time was over, and it was ended

  bool succeeded() const { return exit_code == 0; }
  /// In words, as what follows "it": "was ended by signal 4 (Illegal instruction)".
  std::string describe_exit() const;
};

/// Does `work` in a copy of this process that has its own memory and environment, so that nothing that happens there (a
/// crash, a hang, what libraries set up) reaches this one. It lasts `timeout_seconds` at most. Throws UserError
/// (kFailed) where there can be no further process. REQUIRES: only this thread uses LibTorch, and none that LibTorch
/// starts runs yet: a copy has but the thread that asked for it.
SubprocessResult run_in_subprocess(const std::function<void()>& work, double timeout_seconds);

}  // namespace vlmtrain
