#include "app/process/device.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/planner/target.h"

namespace vlmtrain::app {

std::optional<planner::VirtualGpu> parse_virtual_gpu(const std::string& device) {
  constexpr std::string_view kVirtualGpuPrefix = "virtual:";
  if (!device.starts_with(kVirtualGpuPrefix)) return std::nullopt;
  const auto target = planner::find_target_gpu(device.substr(kVirtualGpuPrefix.size()));
  return planner::VirtualGpu{
      .gpu = std::string(target.gpu->name), .memory_bytes = {}, .initial_used_bytes = target.context_bytes};
}

std::string choose_rank_device(const std::string& device, const distributed::LaunchInfo& launch) {
  if (device != "cuda" && device != "auto") return device;
  const auto num_gpus = std::ssize(memory::probe_driver().gpus);
  // A single visible GPU belongs to this rank (srun --gpus-per-task=1), or ranks share it by
  // mistake, which they detect when they connect.
  if (num_gpus <= 1) return device;
  if (launch.local_rank < num_gpus) return fmt::format("cuda:{}", launch.local_rank);
  throw usage_error("rank {}: is rank {} of its node, counted from 1, but the node has {} GPUs; start one rank per GPU",
                    launch.rank, launch.local_rank + 1, num_gpus);
}

at::Device open_device(const std::string& device) {
  if (parse_virtual_gpu(device)) {
    if (planner::is_on_virtual_gpu()) return memory::open_device("cuda");
    throw usage_error(
        "--device {}: only train supports a virtual GPU, because it computes nothing; choose another device", device);
  }
  planner::check_no_stub_libraries();
  return memory::open_device(device);
}

std::optional<at::ScalarType> parse_weight_dtype(const std::string& name) {
  if (name == "float32" || name == "fp32") return at::kFloat;
  if (name == "bfloat16" || name == "bf16") return at::kBFloat16;
  if (name == "float16" || name == "fp16") return at::kHalf;
  return std::nullopt;
}

void generate_or_explain_oom(int64_t max_new_tokens, const std::function<void()>& generate) {
  try {
    generate();
  } catch (const std::exception& error) {
    const auto out_of_memory = memory::detect_out_of_memory(error);
    if (!out_of_memory) throw;
    throw UserError(ExitCode::kDoesNotFit,
                    fmt::format("{} is full: it contains the KV cache of the prompt and an answer of up to {} tokens "
                                "(--max-new-tokens); lower --max-new-tokens, or give fewer or smaller images",
                                memory::to_string(out_of_memory->kind), max_new_tokens));
  }
}

}  // namespace vlmtrain::app
