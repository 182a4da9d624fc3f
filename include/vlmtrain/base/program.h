#pragma once

#include <string>
#include <vector>

namespace vlmtrain {

/// Null-terminated, as exec and posix_spawn take arguments and environments. Valid as long as `texts` is unchanged.
std::vector<char*> exec_pointers(std::vector<std::string>& texts);

/// This process's arguments, from the kernel: unchanged.
std::vector<std::string> own_arguments();

/// Starts this program again, in this process, with the same arguments and the environment as it is now. Returns only
/// where that is not possible; errno says why.
void restart_program();

}  // namespace vlmtrain
