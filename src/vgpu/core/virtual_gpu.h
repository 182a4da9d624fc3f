#pragma once

#include <cuda.h>

#include <cstdint>

#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain::vgpu {

/// The cost of lazily loading a module on a real GPU; zero unless a test sets it.
struct ModuleLoadCost {
  uint64_t context_growth_bytes = 0;  ///< context growth when the module's first kernel is launched
  double load_seconds = 0;
};

/// The GPU that the environment configures (docs/explanation/virtual-gpu.md lists the variables).
struct VirtualGpu {
  memory::GpuSpec gpu;
  memory::ArchitectureLimits architecture;
  uint64_t memory_bytes = 0;
  uint64_t reported_bytes = 0;  ///< cudaDeviceProp::totalGlobalMem
  uint64_t used_bytes = 0;      ///< at the start: by the context and by other processes
  ModuleLoadCost module_load_cost;
};

/// Returns the GPU of this process, which the first call reads from the environment. If the
/// environment is invalid, the first call reports that on stderr, and all calls return null: the
/// process has no device. Thread-safe.
const VirtualGpu* virtual_gpu();

/// Returns the value that cuDeviceGetAttribute and cudaDeviceGetAttribute report; the two APIs use
/// the same attribute numbers. Returns 0 for features that the GPU lacks and for attributes that
/// LibTorch does not read. REQUIRES: virtual_gpu() is not null.
int get_device_attribute(CUdevice_attribute attribute);

}  // namespace vlmtrain::vgpu
