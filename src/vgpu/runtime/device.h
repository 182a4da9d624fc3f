#pragma once

#include <driver_types.h>

namespace vlmtrain::vgpu {

/// Stores an error for this thread's cudaGetLastError() and returns it.
cudaError_t set_last_error(cudaError_t error);

/// Makes all later calls fail with `error`, as on a broken device. Returns `error`.
cudaError_t set_sticky_error(cudaError_t error);

/// Returns the sticky error, or cudaSuccess without one.
cudaError_t get_device_status();

}  // namespace vlmtrain::vgpu
