#pragma once

#include <driver_types.h>

namespace vlmtrain::vgpu {

/// Remembers an error for cudaGetLastError of this thread, and returns it.
cudaError_t fail(cudaError_t error);

/// From now on every call that asks for it fails with `error`, as after one that leaves a device broken.
cudaError_t break_device(cudaError_t error);
/// cudaSuccess while the device is whole.
cudaError_t state_of_device();

}  // namespace vlmtrain::vgpu
