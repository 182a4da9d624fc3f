// The runtime hands out the driver's functions by name; LibTorch takes those of virtual memory from here.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace {

/// Our libcuda.so.1, by a function of it that this library is linked with: another one may be in the process as well.
void* driver() {
  static void* const library = [] {
    Dl_info place{};
    const bool found = dladdr(reinterpret_cast<const void*>(&cuDriverGetVersion), &place) != 0;
    void* const loaded = found ? dlopen(place.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    return loaded != nullptr ? loaded : RTLD_DEFAULT;
  }();
  return library;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(driver(), name);
  if (result != nullptr) {
    *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}
