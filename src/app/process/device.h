#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::app {

/// Returns the GPU of `virtual:NAME`, for example virtual:h100; nothing for another device. Throws
/// UserError (kUsage) for an unknown name.
std::optional<planner::VirtualGpu> parse_virtual_gpu(const std::string& device);

/// Returns the device of one rank of several: for cuda and auto, where the process sees several
/// GPUs, the one with the rank's number on its machine. Throws UserError (kUsage) where no GPU
/// remains for the rank.
std::string choose_rank_device(const std::string& device, const distributed::Launch& launch);

/// Opens a device as memory::open_device does, or the virtual GPU of this process. Throws UserError
/// (kUsage) for a real GPU in a process with the stub CUDA libraries.
at::Device open_device(const std::string& device);

/// Calls `generate`, which generates up to `max_new_tokens` tokens. Throws UserError (kDoesNotFit)
/// that names --max-new-tokens where memory runs out.
void generate_or_explain_oom(int64_t max_new_tokens, const std::function<void()>& generate);

}  // namespace vlmtrain::app
