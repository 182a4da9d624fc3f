#pragma once

#include <cuda.h>

namespace vlmtrain::vgpu {

/// What the card answers to cuDeviceGetAttribute, and to cudaDeviceGetAttribute, whose numbers are the same. 0 for what
/// the card does not have and for what LibTorch does not ask. REQUIRES: virtual_gpu().
int device_attribute(CUdevice_attribute attribute);

}  // namespace vlmtrain::vgpu
