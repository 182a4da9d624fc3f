#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace vlmtrain {

/// Calls a function of the CUDA runtime or driver that is loaded in the process; the tests link
/// neither. Returns its status.
template <class... Arguments>
int call(const char* name, Arguments... arguments) {
  void* const function = dlsym(RTLD_DEFAULT, name);
  if (function == nullptr) throw std::runtime_error(std::string(name) + " is not in the process");
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

// Statuses of cuda_runtime_api.h.
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidConfiguration = 9;
constexpr int kInvalidFunction = 98;
constexpr int kNoKernelImage = 209;
constexpr int kNotSupported = 801;

}  // namespace vlmtrain
