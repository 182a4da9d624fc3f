#pragma once

#include <dlfcn.h>

namespace vlmtrain::memory {

/// The functions of the driver's library, as cuda.h declares them. Stays loaded.
class DriverLibrary {
 public:
  explicit DriverLibrary(void* library) : library_(library) {}

  /// kMissing where the library has no such function.
  static constexpr int kMissing = -1;

  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function == nullptr ? kMissing : function(arguments...);
  }

 private:
  void* library_;
};

}  // namespace vlmtrain::memory
