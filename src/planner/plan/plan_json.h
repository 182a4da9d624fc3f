#pragma once

#include <nlohmann/json.hpp>

#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// References to the fields that GPU and CPU plans have in common. They must outlive the object.
struct PlanSummary {
  bool fits;
  const std::string& model;
  const Job& job;
  MemoryMode mode;
  const StepConfig& step_config;
  const Workload& workload;
  const SampleBatch& worst_batch;
  const DryRunDetail& detail;
  const std::vector<Suggestion>& suggestions;
  const PlanningStats& planning_stats;
};

/// Returns the fields of plan.json that GPU and CPU plans have in common.
nlohmann::ordered_json make_plan_summary_json(const PlanSummary& summary);

/// Returns the bytes of each component at the peak, under keys such as "weights_bytes".
nlohmann::ordered_json make_peak_bytes_json(const memory::MemoryPeak& peak);

/// Returns {"language_blocks", "selective_language_blocks", "vision_blocks"}.
nlohmann::ordered_json make_recompute_blocks_json(const models::RecomputeBlockCounts& blocks);

}  // namespace vlmtrain::planner
