#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain {

/// Returns a path that executes the program of this process: /proc/self/exe, unless set_program()
/// was called.
std::filesystem::path get_program_path();

/// Returns the folder of the program, in which its plug-ins are; empty if /proc is not mounted.
std::filesystem::path get_program_folder();

/// Lets this process pass for the program at `path`, started with `arguments`, the program's name
/// first: child processes, restart_program() and read_process_arguments() (base/process.h) use
/// them. For tests that run a command in a forked process. REQUIRES: no other threads.
void set_program(const std::filesystem::path& path, const std::vector<std::string>& arguments);

/// Returns the arguments of set_program(); empty if it was not called.
const std::vector<std::string>& get_set_program_arguments();

}  // namespace vlmtrain
