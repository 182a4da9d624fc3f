#include <cstddef>

#include "memory/driver_library.h"
#include "vlmtrain/memory/driver.h"

namespace vlmtrain::memory {

namespace {

/// A context on a card, current in this thread as long as it lives.
class PrimaryContext {
 public:
  PrimaryContext(const DriverLibrary& driver, int device) : driver_(driver), device_(device) {
    void* context = nullptr;
    error_ = driver_.call("cuDevicePrimaryCtxRetain", &context, device_);
    if (error_ != 0) return;
    is_retained_ = true;
    error_ = driver_.call("cuCtxPushCurrent_v2", context);
  }
  ~PrimaryContext() {
    void* context = nullptr;
    if (error_ == 0) driver_.call("cuCtxPopCurrent_v2", &context);
    if (is_retained_) driver_.call("cuDevicePrimaryCtxRelease_v2", device_);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  int error() const { return error_; }

 private:
  const DriverLibrary& driver_;
  int device_;
  int error_ = 0;
  bool is_retained_ = false;
};

}  // namespace

GpuMemoryInfo query_gpu_memory(int index, const DriverPaths& paths) {
  GpuMemoryInfo info;
  void* const library = dlopen(paths.library.c_str(), RTLD_NOW);
  if (library == nullptr) return {.error = DriverLibrary::kMissing};
  const DriverLibrary driver(library);
  int device = 0;
  size_t total = 0;
  info.error = driver.call("cuInit", 0U);
  if (info.error == 0) info.error = driver.call("cuDeviceGet", &device, index);
  if (info.error == 0) info.error = driver.call("cuDeviceTotalMem_v2", &total, device);
  if (info.error != 0) return info;
  info.total_bytes = static_cast<int64_t>(total);
  const PrimaryContext context(driver, device);
  size_t free = 0;
  info.error = context.error();
  if (info.error == 0) info.error = driver.call("cuMemGetInfo_v2", &free, &total);
  if (info.error == 0) info.free_bytes = static_cast<int64_t>(free);
  return info;
}

}  // namespace vlmtrain::memory
