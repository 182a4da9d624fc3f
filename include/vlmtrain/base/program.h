#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// Null-terminated, as exec and posix_spawn take arguments and environments. Valid as long as `strings` is unchanged.
std::vector<char*> make_exec_array(std::vector<std::string>& strings);

/// This process's arguments, from the kernel: unchanged.
std::vector<std::string> read_process_arguments();

/// This process's environment, of which the variables stay whose names `keep` says yes to, with `overrides` in place of
/// those of their names. As "name=value".
std::vector<std::string> make_environment(const std::map<std::string, std::string>& overrides,
                                          const std::function<bool(std::string_view name)>& keep);

/// Starts this program again, in this process, with the same arguments and the environment as it is now. Returns only
/// where that is not possible; errno says why.
void restart_program();

}  // namespace vlmtrain
