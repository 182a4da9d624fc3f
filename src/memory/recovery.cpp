#include "vlmtrain/memory/recovery.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "vlmtrain/base/first_line.h"

namespace vlmtrain::memory {

void release_pinned(at::Device device) {
  if (!device.is_cpu()) at::getHostAllocator(device.type())->empty_cache();
}

std::optional<std::string> find_device_failure(at::Device device) {
  try {
    at::full({1 << 20}, /*fill_value=*/1, at::TensorOptions(at::kByte).device(device)).sum().item();
    return std::nullopt;
  } catch (const c10::Error& error) {
    return get_first_line(error.what());
  }
}

}  // namespace vlmtrain::memory
