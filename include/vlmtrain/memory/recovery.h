#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace vlmtrain::memory {

/// Gives back the pinned memory of the host that no tensor uses. Nothing on the CPU.
void release_pinned(at::Device device);

/// Why the device can do nothing at all any more, not even fill a tensor of a megabyte; nothing where it can. Waits for
/// the device.
std::optional<std::string> find_device_failure(at::Device device);

}  // namespace vlmtrain::memory
