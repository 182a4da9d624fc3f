#pragma once

#include <string>
#include <vector>

namespace vlmtrain {

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
