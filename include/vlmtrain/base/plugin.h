#pragma once

#include <string>
#include <vector>

namespace vlmtrain {

/// Functions of a shared library that is loaded on first use, or the reason why it cannot be
/// loaded.
struct Plugin {
  std::vector<void*> functions{};  ///< in the order of the requested names; empty if the library cannot be loaded
  std::string problem{};           ///< empty if it was loaded
};

/// Loads `library` from the program's folder, its parent folder or the system's library path. The
/// symbols of the library stay private to it, and it is never unloaded.
///
/// Its function `version_name` must return `version`; otherwise `problem` says that the versions
/// differ.
Plugin load_plugin(const char* library, const char* version_name, int version,
                   const std::vector<const char*>& functions);

}  // namespace vlmtrain
