#pragma once

#include <driver_types.h>

namespace vlmtrain::vgpu {

/// Remembers an error for cudaGetLastError of this thread, and returns it.
cudaError_t set_last_error(cudaError_t error);

/// From now on every call that asks for it fails with `error`, as after one that leaves a device broken.
cudaError_t set_sticky_error(cudaError_t error);
/// cudaSuccess while the device is whole.
cudaError_t get_device_status();

}  // namespace vlmtrain::vgpu
