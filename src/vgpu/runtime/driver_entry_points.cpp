// The runtime hands out the driver's functions by name; LibTorch takes those of virtual memory from here.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace {

/// Our libcuda.so.1, by a function of it that this library is linked with: another one may be in the process as well.
void* get_driver_library() {
  static void* const library = [] {
    Dl_info info{};
    const bool has_info = dladdr(reinterpret_cast<const void*>(&cuDriverGetVersion), &info) != 0;
    void* const handle = has_info ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    return handle != nullptr ? handle : RTLD_DEFAULT;
  }();
  return library;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(get_driver_library(), name);
  if (result != nullptr) {
    *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}
