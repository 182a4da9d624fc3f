#pragma once

#include <nlohmann/json.hpp>

#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// The common content of GPU and CPU plans.
struct PlanSummary {
  bool fits;
  const std::string& model;
  const Job& job;
  MemoryMode mode;
  const StepConfig& step_config;
  const Workload& workload;
  const SampleBatch& worst;
  const DryRunDetail& detail;
  const std::vector<Suggestion>& suggestions;
  const PlanningEffort& effort;
};

/// Returns the fields of plan.json that both kinds of plan have.
nlohmann::ordered_json plan_summary_json(const PlanSummary& step);

/// Returns the peak by component.
nlohmann::ordered_json peak_bytes_json(const memory::Peak& peak);

/// Returns {"language_blocks", "selective_language_blocks", "vision_blocks"}.
nlohmann::ordered_json blocks_json(const models::RecomputeBlocks& blocks);

}  // namespace vlmtrain::planner
