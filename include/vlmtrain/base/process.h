#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// Returns the host name from gethostname(), or "" on failure.
std::string get_host_name();

/// Returns a path that executes the program of this process: /proc/self/exe, unless set_program()
/// was called.
std::filesystem::path get_program_path();

/// Returns the folder of the program, in which its plug-ins are; empty if /proc is not mounted.
std::filesystem::path get_program_folder();

/// Returns the arguments of this process from set_program() or /proc/self/cmdline, the program's
/// name first; empty if the file cannot be read.
std::vector<std::string> read_process_arguments();

/// Lets this process pass for the program at `path`, started with `arguments`, the program's name
/// first: child processes, restart_program() and the functions above use them. For tests that run a
/// command in a forked process. REQUIRES: no other threads.
void set_program(const std::filesystem::path& path, const std::vector<std::string>& arguments);

/// Returns environment entries "NAME=value": the variables of this process for which `should_keep`
/// returns true, then `overrides`, which replace variables of the same name.
std::vector<std::string> make_environment(const std::map<std::string, std::string>& overrides,
                                          const std::function<bool(std::string_view name)>& should_keep);

/// Returns the null-terminated array that exec and posix_spawn take as argv or envp. The pointers
/// point into `strings` and are valid while it is unchanged.
std::vector<char*> make_null_terminated_array(std::vector<std::string>& strings);

/// Executes the same program again in this process (execv), with the same arguments and the current
/// environment. Returns only on failure, with errno set.
void restart_program();

/// Outcome of work that ran in a child process.
struct SubprocessResult {
  std::string stdout_text;     ///< standard output of the child
  int exit_code = -1;          ///< 0 if the work returned; -1 if a signal terminated the child
  int termination_signal = 0;  ///< number of the signal that terminated the child; 0 if none or on a timeout
  bool timed_out = false;      ///< the child was killed after the timeout

  bool succeeded() const { return exit_code == 0; }
  /// Returns a predicate for messages, such as "was ended by signal 4 (Illegal instruction)".
  std::string describe_exit() const;
};

/// Runs `work` in a forked child process, waits for it and returns its outcome. The child has its
/// own memory and environment, so a crash, a hang or global state of libraries does not affect the
/// calling process. The child is killed after `timeout_seconds`, and when the calling thread exits.
///
/// REQUIRES: `work` does not throw. Only the calling thread uses LibTorch, and LibTorch has not
/// started threads yet, because a forked child has only the calling thread. Throws UserError
/// (kFailed) if no pipe or process can be created.
SubprocessResult run_in_subprocess(const std::function<void()>& work, double timeout_seconds);

/// The functions of an optional shared library of this program, or the reason why it cannot be
/// loaded.
struct Plugin {
  std::vector<void*> functions{};  ///< in the order of the requested names; empty if the library cannot be loaded
  std::string problem{};           ///< an error message; empty if the library was loaded
};

/// Loads the file `library` and looks up `function_names`, names of C functions. Searches the
/// program's folder, its parent folder and the system's library path, in this order. The symbols of
/// the library stay private to it (RTLD_LOCAL), and it is never unloaded. Does not throw.
///
/// `version_function` names a C function of the library, `int version_function()`. It must return
/// `version`, and all functions must exist. Otherwise `problem` reports that the versions differ.
Plugin load_plugin(const char* library, const char* version_function, int version,
                   const std::vector<const char*>& function_names);

}  // namespace vlmtrain
