#pragma once

#include <c10/core/Device.h>

namespace vlmtrain::memory {

/// Asks the card for the size that limits are a share of, as the allocator does when it begins: a rehearsal's card says
/// another one later. Nothing on the CPU.
void cache_device_size(at::Device device);

}  // namespace vlmtrain::memory
