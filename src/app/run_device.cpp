#include "app/run_device.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/planner/limit.h"

namespace vlmtrain::app {

std::optional<planner::VirtualCard> virtual_card(const std::string& device) {
  constexpr std::string_view kPrefix = "virtual:";
  if (!device.starts_with(kPrefix)) return std::nullopt;
  const auto card = planner::card_by_name(device.substr(kPrefix.size()));
  return planner::VirtualCard{.gpu = std::string(card.gpu->name), .memory_bytes = {}, .used_bytes = card.context_bytes};
}

std::string device_of_rank(const std::string& device, const distributed::Launch& launch) {
  if (device != "cuda" && device != "auto") return device;
  const auto cards = std::ssize(memory::probe_driver().cards);
  // Where there is one, the launcher has given each rank its own (srun --gpus-per-task=1), or cards are shared, which
  // is found when the ranks have met.
  if (cards <= 1) return device;
  if (launch.local_rank < cards) return fmt::format("cuda:{}", launch.local_rank);
  throw usage_error("rank {} is number {} on its machine, which has {} GPUs for it; start as many ranks there as GPUs",
                    launch.rank, launch.local_rank + 1, cards);
}

at::Device open_device(const std::string& device) {
  if (virtual_card(device)) {
    if (planner::on_virtual_card()) return memory::open_device("cuda");
    throw usage_error("--device {}: only train can be rehearsed; a virtual card computes nothing", device);
  }
  planner::refuse_stand_ins();
  return memory::open_device(device);
}

}  // namespace vlmtrain::app
