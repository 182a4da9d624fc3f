#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/libtorch_env.h"

// The only file of the part that includes CUDA's headers. A limit changes during a run, but PyTorch
// reads its own setting only at startup. Calling the allocator through a virtual function needs no
// CUDA library at link time.

namespace vlmtrain::memory {

namespace {

/// The allocator takes fractions of the size in the device properties, not of the driver's memory
/// figures. It reads that size once at startup. A virtual GPU may report a larger size later, so
/// the size is cached here as well.
double get_total_global_mem(int device) {
  static std::mutex mutex;
  static std::map<int, double> total_bytes_by_device;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto it = total_bytes_by_device.find(device); it != total_bytes_by_device.end()) return it->second;
  using GetProperties = cudaError_t (*)(cudaDeviceProp*, int);
  const auto get_properties = reinterpret_cast<GetProperties>(dlsym(RTLD_DEFAULT, "cudaGetDeviceProperties"));
  cudaDeviceProp properties{};
  if (get_properties == nullptr || get_properties(&properties, device) != cudaSuccess) {
    throw run_error("device cuda:{}: it does not tell its properties", device);
  }
  return total_bytes_by_device[device] = static_cast<double>(properties.totalGlobalMem);
}

int64_t read_env_limit() {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const char* const text = std::getenv(kReservedLimitVariable);
  if (text == nullptr) return kNoLimit;
  const std::string_view digits = text;
  int64_t bytes = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bytes);
  if (error == std::errc() && end == digits.data() + digits.size() && bytes > 0) return bytes;
  throw usage_error("{}={}: must be a number of bytes", kReservedLimitVariable, text);
}

}  // namespace

void cache_device_size(at::Device device) {
  if (!device.is_cpu()) get_total_global_mem(device.index());
}

void limit_reserved_bytes(at::Device device, int64_t bytes) {
  if (device.is_cpu()) return;
  bytes = std::min(bytes, read_env_limit());
  const double fraction = std::clamp(static_cast<double>(bytes) / get_total_global_mem(device.index()), 0.0, 1.0);
  auto* const allocator = c10::GetAllocator(c10::DeviceType::CUDA);
  static_cast<c10::cuda::CUDACachingAllocator::CUDAAllocator*>(allocator)->setMemoryFraction(fraction, device.index());
}

}  // namespace vlmtrain::memory
