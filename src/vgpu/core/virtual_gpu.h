#pragma once

#include <cuda.h>

#include <cstdint>

#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain::vgpu {

/// What a real card does beside the work it is given; zero unless a test asks for it.
struct ModuleLoadCost {
  uint64_t module_bytes = 0;  ///< that each module takes when its first kernel is launched (lazy loading)
  double module_seconds = 0;  ///< that this takes
};

/// The card that this process is on, from the environment (docs/virtual-gpu.md has the variables).
struct VirtualGpu {
  memory::Gpu gpu;
  memory::Architecture architecture;
  uint64_t memory_bytes = 0;
  uint64_t reported_bytes = 0;  ///< as cudaDeviceProp::totalGlobalMem
  uint64_t used_bytes = 0;      ///< from the start: the context, other processes
  ModuleLoadCost module_load_cost;
};

/// Null, after one report on stderr, where the environment does not name a card: there is no device then.
const VirtualGpu* virtual_gpu();

/// What the card answers to cuDeviceGetAttribute, and to cudaDeviceGetAttribute, whose numbers are the same. 0 for what
/// the card does not have and for what LibTorch does not ask. REQUIRES: virtual_gpu().
int device_attribute(CUdevice_attribute attribute);

}  // namespace vlmtrain::vgpu
