#include "train/planning/saved_plan.h"

#include <fmt/format.h>

#include <utility>

#include "vlmtrain/io/json.h"

namespace vlmtrain::train {

namespace {

/// Name of the field, and the name in checkpoints of older versions.
constexpr io::FieldAlias kSelectiveBlocksField{"selective_language_blocks", "language_attention_kept"};

}  // namespace

nlohmann::ordered_json SavedPlan::to_json(const char* limit_key) const {
  nlohmann::ordered_json json{{"micro_batch_size", step_config.micro_batch_size},
                              {"recomputed_vision_blocks", step_config.recompute.vision},
                              {"recomputed_language_blocks", step_config.recompute.language},
                              {"vision_tiles_per_pass", step_config.vision_tiles_per_pass},
                              {"loss_chunk_rows", step_config.loss_chunk_rows},
                              {limit_key, limit_bytes}};
  if (step_config.recompute.language_selective > 0) {
    json[kSelectiveBlocksField.name] = step_config.recompute.language_selective;
    io::add_field_aliases(json, {kSelectiveBlocksField});
  }
  if (!step_config.copies_ahead) json["copies_ahead"] = false;
  if (step_config.memory_cost_table) json["costs"] = step_config.memory_cost_table->to_json();
  return json;
}

SavedPlan SavedPlan::from_json(const nlohmann::ordered_json& json, const char* limit_key, const std::string& source) {
  const auto get_number = [&](const char* key) { return io::get<int64_t>(json, key, source); };
  SavedPlan plan{.step_config = {.micro_batch_size = get_number("micro_batch_size"),
                                 .recompute = {.vision = get_number("recomputed_vision_blocks"),
                                               .language = get_number("recomputed_language_blocks")},
                                 .vision_tiles_per_pass = get_number("vision_tiles_per_pass"),
                                 .loss_chunk_rows = get_number("loss_chunk_rows")},
                 .limit_bytes = get_number(limit_key)};
  if (const char* const name = io::find_field_name(json, kSelectiveBlocksField); json.contains(name)) {
    plan.step_config.recompute.language_selective = get_number(name);
  }
  if (json.contains("copies_ahead")) plan.step_config.copies_ahead = io::get<bool>(json, "copies_ahead", source);
  if (const auto costs = json.find("costs"); costs != json.end()) {
    plan.step_config.memory_cost_table = planner::MemoryCostTable::from_json(*costs, source);
  }
  return plan;
}

planner::StepConstraints constrain_to_saved_config(const planner::StepConstraints& requested,
                                                   const planner::StepConfig& saved) {
  planner::StepConstraints fixed_constraints = requested;
  if (!fixed_constraints.micro_batch_size) fixed_constraints.micro_batch_size = saved.micro_batch_size;
  if (fixed_constraints.recompute.is_auto())
    fixed_constraints.recompute = planner::RecomputeOption::from_block_counts(saved.recompute);
  if (!fixed_constraints.vision_tiles_per_pass) fixed_constraints.vision_tiles_per_pass = saved.vision_tiles_per_pass;
  if (!fixed_constraints.loss_chunk_rows) fixed_constraints.loss_chunk_rows = saved.loss_chunk_rows;
  return fixed_constraints;
}

PlanWithSplitFallback make_plan_with_split_fallback(
    planner::PlanRequest request, bool allow_splits,
    const std::function<planner::Plan(const planner::PlanRequest&)>& make_plan) {
  const bool may_split = allow_splits && request.constraints.micro_batch_size;
  const bool with_suggestions = std::exchange(request.with_suggestions, request.with_suggestions && !may_split);
  planner::Plan plan = make_plan(request);
  if (plan.fits || !may_split) return {std::move(plan), std::nullopt};
  const int64_t requested_micro_batch_size = *std::exchange(request.constraints.micro_batch_size, 1);
  request.with_suggestions = with_suggestions;
  plan = make_plan(request);
  const bool fits = plan.fits;
  return {std::move(plan), fits ? std::optional{requested_micro_batch_size} : std::nullopt};
}

}  // namespace vlmtrain::train
