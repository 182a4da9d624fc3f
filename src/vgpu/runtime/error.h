#pragma once

#include <driver_types.h>

namespace vlmtrain::vgpu {

/// Remembers an error for cudaGetLastError of this thread, and returns it.
cudaError_t fail(cudaError_t error);

}  // namespace vlmtrain::vgpu
