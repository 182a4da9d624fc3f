#pragma once

#include <string>
#include <vector>

namespace vlmtrain {

/// Functions of a plug-in, a library that is loaded when it is first needed; or why they cannot be had.
struct Plugin {
  std::vector<void*> functions{};  ///< in the order of their names; empty where they cannot be had
  std::string problem{};
};

/// Loads `library` from the folder of the program, the one above it, or where the system looks for libraries. It tells
/// its contract's version by its function `version_name`. Its symbols stay its own. It is never unloaded.
Plugin load_plugin(const char* library, const char* version_name, int version,
                   const std::vector<const char*>& functions);

}  // namespace vlmtrain
