#pragma once

#include <driver_types.h>

namespace vlmtrain::vgpu {

/// Stores an error for this thread's cudaGetLastError() and returns it.
cudaError_t set_last_error(cudaError_t error);

/// Makes all later calls that check get_device_status() return `error`, as on a broken device.
/// Returns `error`. Thread-safe.
cudaError_t set_sticky_error(cudaError_t error);

/// Returns the error of set_sticky_error(), or cudaSuccess if there is none. Stores the error for
/// cudaGetLastError(). Thread-safe.
cudaError_t get_device_status();

}  // namespace vlmtrain::vgpu
