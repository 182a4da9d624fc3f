#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// Returns the host name from gethostname(), or "" if it has none.
std::string get_host_name();

/// Returns the arguments of this process as the kernel has them (/proc/self/cmdline).
std::vector<std::string> read_process_arguments();

/// Returns environment entries "NAME=value": the variables of this process for which `keep` returns
/// true, then `overrides`, which replace variables of the same name.
std::vector<std::string> make_environment(const std::map<std::string, std::string>& overrides,
                                          const std::function<bool(std::string_view name)>& keep);

/// Returns a null-terminated array for exec and posix_spawn. The pointers are valid while `strings`
/// is unchanged.
std::vector<char*> make_exec_array(std::vector<std::string>& strings);

/// Replaces this process by a new run of the same program, with the same arguments and the current
/// environment. Returns only on failure, with errno set.
void restart_program();

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
