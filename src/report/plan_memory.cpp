#include "report/plan_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace vlmtrain::report {

std::vector<MemoryRow> make_memory_rows(const planner::Plan& plan) {
  using memory::Component;
  using Kind = MemoryRow::Kind;
  const memory::ComponentBytes& peak = plan.detail.peak.by_component;
  const auto bytes = [&](Component component) { return peak[static_cast<size_t>(component)]; };
  const int64_t allocated = std::accumulate(peak.begin(), peak.end(), int64_t{0});
  std::vector<MemoryRow> rows;
  for (const auto component : {Component::kWeights, Component::kGradients, Component::kOptimizer, Component::kVision,
                               Component::kLanguage, Component::kMasks, Component::kLoss}) {
    if (component == Component::kMasks && bytes(component) == 0) continue;
    rows.push_back({std::string(memory::to_string(component)), bytes(component)});
  }
  rows.push_back({"input and other", bytes(Component::kInput) + bytes(Component::kOther)});
  rows.push_back({"workspace", bytes(Component::kWorkspace)});
  rows.push_back({"fragmentation", plan.best.peaks.reserved_bytes - allocated});
  rows.push_back({plan.target.context_measured ? "context" : "context (not measured)", plan.limit.context_bytes});
  if (plan.limit.communication_bytes > 0) rows.push_back({"NCCL (estimated)", plan.limit.communication_bytes});
  const int64_t free_bytes = plan.limit.gpu_bytes - plan.total_bytes() - plan.limit.margin_bytes;
  if (free_bytes >= 0) rows.push_back({"free", free_bytes, Kind::kFree});
  rows.push_back({fmt::format("margin ({:g} %)", plan.limit.margin_percent), plan.limit.margin_bytes, Kind::kMargin});
  return rows;
}

int64_t compute_missing_bytes(const planner::Plan& plan) {
  return std::max<int64_t>(0, plan.total_bytes() + plan.limit.margin_bytes - plan.limit.gpu_bytes);
}

}  // namespace vlmtrain::report
