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

}  // namespace vlmtrain
