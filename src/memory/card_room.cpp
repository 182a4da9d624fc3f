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

CardRoom room_on_card(int index, const DriverPlaces& places) {
  CardRoom room;
  void* const loaded = dlopen(places.library.c_str(), RTLD_NOW);
  if (loaded == nullptr) return {.error = DriverLibrary::kMissing};
  const DriverLibrary driver(loaded);
  int device = 0;
  size_t total = 0;
  room.error = driver.call("cuInit", 0U);
  if (room.error == 0) room.error = driver.call("cuDeviceGet", &device, index);
  if (room.error == 0) room.error = driver.call("cuDeviceTotalMem_v2", &total, device);
  if (room.error != 0) return room;
  room.total_bytes = static_cast<int64_t>(total);
  const PrimaryContext context(driver, device);
  size_t free = 0;
  room.error = context.error();
  if (room.error == 0) room.error = driver.call("cuMemGetInfo_v2", &free, &total);
  if (room.error == 0) room.free_bytes = static_cast<int64_t>(free);
  return room;
}

}  // namespace vlmtrain::memory
