#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/planner/virtual_card.h"

namespace vlmtrain::app {

/// The card of `virtual:NAME`, such as virtual:h100; nothing for another device. Throws UserError (kUsage) for a name
/// that is not in the table of GPUs.
std::optional<planner::VirtualGpu> parse_virtual_gpu(const std::string& device);

/// What `device` is for one rank of several: of cuda and auto, where this process sees several cards, the one with the
/// number that the rank has on its machine. Throws UserError (kUsage) where it has no card of its own.
std::string choose_rank_device(const std::string& device, const distributed::Launch& launch);

/// As memory::open_device; a process on a virtual card opens that. Throws UserError (kUsage) in a process that has the
/// stand-ins for the CUDA libraries although a real card is asked for.
at::Device open_device(const std::string& device);

/// Does what answers with up to `max_new_tokens` new tokens. Where memory runs out for them, a UserError (kDoesNotFit)
/// names
/// --max-new-tokens.
void generate_or_explain_oom(int64_t max_new_tokens, const std::function<void()>& generate);

}  // namespace vlmtrain::app
