#pragma once

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

/// A row of the savings table: the savings of all previous rows plus one more.
struct SavingsRow {
  std::string name;                    ///< name of the added saving, such as "16 bits"
  std::vector<std::string> arguments;  ///< arguments that select this row, for a command without LoRA options
  std::string unavailable_reason;      ///< why the row does not apply; empty if it applies
  /// The estimate for micro-batches of one sample, or of the micro-batch size that the user has
  /// set. All blocks are recomputed from the row "recomputation" on, none before it. Independent of
  /// the GPU's size.
  StepEstimate single_sample_estimate;
  int64_t single_sample_bytes = 0;  ///< Plan::total_bytes() of `single_sample_estimate`
  /// Plan::best_estimate of this row's plan; nullopt if nothing fits.
  std::optional<StepEstimate> best_estimate = std::nullopt;
  int64_t best_total_bytes = 0;  ///< Plan::total_bytes() of this row's plan; 0 if nothing fits
  DryRunDetail detail = {};      ///< Plan::detail of this row's plan
};

/// Returns the rows none (fp32, all weights trained), 16 bits, recomputation, 8-bit optimizer
/// states, LoRA and NF4, for the samples and GPU of `request`. Frozen parts stay frozen. The LoRA
/// row uses the job's LoRA settings if it has any. `plan` is the result of make_plan(request).
/// Takes as long as six plans. Throws the exceptions of make_plan(), except those that become
/// SavingsRow::unavailable_reason.
std::vector<SavingsRow> make_savings_table(const PlanRequest& request, const Plan& plan);

/// Returns a list of {"name", "arguments", "absent", "single", "planned"}: unavailable_reason, or
/// null if it is empty; single_sample_estimate; best_estimate or null. Estimates have bytes and
/// seconds as in Plan::to_json().
nlohmann::ordered_json make_savings_json(const std::vector<SavingsRow>& rows);

}  // namespace vlmtrain::planner
