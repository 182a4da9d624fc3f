#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::app {

/// Returns the GPU of a device `virtual:NAME`, such as virtual:h100; nothing for another device.
/// Throws UserError (kUsage) for an unknown name.
std::optional<planner::VirtualGpu> parse_virtual_gpu(const std::string& device);

/// Returns the device of a rank in a distributed run. For cuda and auto, if the process sees
/// several GPUs, it is cuda:LOCAL_RANK; otherwise it is `device`. Throws UserError (kUsage) if the
/// node has more ranks than GPUs.
std::string choose_rank_device(const std::string& device, const distributed::LaunchInfo& launch);

/// Opens the device auto, cpu, cuda or cuda:N as memory::open_device() does, and virtual:NAME in a
/// process that is on a virtual GPU. Throws UserError (kUsage) for a virtual GPU in another
/// process, and for a real GPU in a process with the stub libraries of the virtual GPU.
at::Device open_device(const std::string& device);

/// Returns the data type with a name of list_weight_dtype_names() (app/settings/arguments.h);
/// nothing for another word.
std::optional<at::ScalarType> parse_weight_dtype(const std::string& name);

/// Calls `generate`, which generates up to `max_new_tokens` tokens. If memory runs out, throws
/// UserError (kDoesNotFit) with a message about --max-new-tokens. Passes on other exceptions.
void generate_or_explain_oom(int64_t max_new_tokens, const std::function<void()>& generate);

}  // namespace vlmtrain::app
