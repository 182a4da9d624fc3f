#pragma once

#include <string>

namespace vlmtrain {

/// Of this machine, as gethostname() has it; empty where it has none.
std::string get_host_name();

}  // namespace vlmtrain
