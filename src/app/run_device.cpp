#include "app/run_device.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/limit.h"

namespace vlmtrain::app {

std::optional<planner::VirtualCard> virtual_card(const std::string& device) {
  constexpr std::string_view kPrefix = "virtual:";
  if (!device.starts_with(kPrefix)) return std::nullopt;
  const auto card = planner::card_by_name(device.substr(kPrefix.size()));
  return planner::VirtualCard{.gpu = std::string(card.gpu->name), .memory_bytes = {}, .used_bytes = card.context_bytes};
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
