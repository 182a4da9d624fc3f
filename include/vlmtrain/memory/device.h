#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace vlmtrain::memory {

/// The device that `name` means: `cpu`, `cuda`, `cuda:N`, or `auto` (CUDA where there is a usable GPU, else the CPU).
/// For CUDA, LibTorch's CUDA library is loaded here, from beside the CPU library: a run on the CPU never pays for it.
/// Throws UserError: kUsage for an unknown name, kFailed where CUDA cannot be used, with the reason.
at::Device open_device(const std::string& name);

/// Device memory as PyTorch's caching allocator counts it; zeros on the CPU.
struct DeviceMemory {
  int64_t allocated_peak_bytes = 0;
  int64_t reserved_peak_bytes = 0;
};

/// The peaks since the last call of reset_peaks. Does not wait for the device.
DeviceMemory device_memory(at::Device device);
void reset_peaks(at::Device device);

/// Peak resident set of this process, from the kernel.
int64_t host_peak_bytes();

}  // namespace vlmtrain::memory
