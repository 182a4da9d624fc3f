#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain {

/// Null-terminated, as exec and posix_spawn take arguments and environments. Valid as long as `texts` is unchanged.
std::vector<char*> exec_pointers(std::vector<std::string>& texts);

/// This process's arguments, from the kernel: unchanged.
std::vector<std::string> own_arguments();

/// This process's environment, of which the variables stay whose names `stays` says yes to, with `changes` in place of
/// those of their names. As "name=value".
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes,
                                          const std::function<bool(std::string_view name)>& stays);

/// Starts this program again, in this process, with the same arguments and the environment as it is now. Returns only
/// where that is not possible; errno says why.
void restart_program();

}  // namespace vlmtrain
