#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// A row of the savings table: the savings of all previous rows plus one more.
struct SavingsRow {
  std::string name;                    ///< "16 bits"
  std::vector<std::string> arguments;  ///< for a command without LoRA options
  std::string unavailable_reason;      ///< why the row does not apply; empty: it does
  /// Micro-batches of one sample, or of the set size, with all blocks recomputed or none. Independent of the
  /// GPU's size.
  StepEstimate single_sample;
  int64_t single_sample_bytes = 0;  ///< like Plan::total_bytes()
  /// Plan::best of make_plan(); nullopt: nothing fits.
  std::optional<StepEstimate> best_estimate = std::nullopt;
  int64_t planned_bytes = 0;
  DryRunDetail detail = {};  ///< of the plan
};

/// Returns the rows none (fp32, all weights) → 16 bits → recomputation → 8-bit optimizer states → LoRA →
/// NF4, for the samples and GPU of `request`. Frozen parts stay frozen, and the job's LoRA settings are
/// used if it has any. `plan` is the plan of `request`. Takes the time of six plans. Throws the exceptions
/// of make_plan(), except those that become SavingsRow::unavailable_reason.
std::vector<SavingsRow> make_savings_table(const PlanRequest& request, const Plan& plan);

/// Returns a list of {"name", "arguments", "absent" or null, "single": {…}, "planned": {…} or null}, with
/// bytes and seconds as in Plan::to_json().
nlohmann::ordered_json savings_json(const std::vector<SavingsRow>& rows);

}  // namespace vlmtrain::planner
