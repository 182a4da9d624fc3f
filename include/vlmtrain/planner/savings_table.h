#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// A rung of the ladder: what the rungs before it have, and one thing more that saves memory.
struct SavingsRow {
  std::string name;                    ///< "16 bits"
  std::vector<std::string> arguments;  ///< that lead to its plan, put behind a command without keys of LoRA
  std::string unavailable_reason;      ///< why there is no such rung, and so no figures; empty: there is
  /// Micro-batches of one sample, or as many as are fixed, with all blocks recomputed or none, rehearsed: what the rung
  /// takes by itself, whatever the card.
  StepEstimate single_sample;
  int64_t single_sample_bytes = 0;  ///< with the context, as Plan::total_bytes
  /// The plan for the card, as make_plan; nothing where none fits.
  std::optional<StepEstimate> best_estimate = std::nullopt;
  int64_t planned_bytes = 0;
  DryRunDetail detail = {};  ///< of the plan: how many blocks there are
};

/// none (fp32, all weights) → 16 bits → recomputation → optimizer states of 8 bits → LoRA → NF4, for the samples and
/// the card of `request`, with the parts that its job freezes; LoRA is the job's own where it has some. `plan` is the
/// request's. Takes six plans' time. Throws as make_plan, but for what only says that a rung is none.
std::vector<SavingsRow> make_savings_table(const PlanRequest& request, const Plan& plan);

/// A list of {"name", "arguments", "absent" or null, "single": {…}, "planned": {…} or null}; bytes and seconds as in
/// Plan::to_json.
nlohmann::ordered_json savings_json(const std::vector<SavingsRow>& rows);

}  // namespace vlmtrain::planner
