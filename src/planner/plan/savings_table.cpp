#include "vlmtrain/planner/savings_table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

#include "planner/search/plan_evaluator.h"
#include "planner/suggestions/change_evaluator.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::planner {

namespace {

/// The request of the current row. Each row applies one more saving.
struct SavingsState {
  PlanRequest request;
  bool uses_recomputation = false;

  /// Returns SavingsRow::arguments.
  std::vector<std::string> arguments() const {
    const Job& job = request.job;
    return {fmt::format("{}=", keys::training::kPrecision) + engine::to_string(job.precision),
            fmt::format("{}={}", keys::memory::kRecompute, uses_recomputation ? "auto" : "none"),
            fmt::format("{}=", keys::training::kOptimizerStates) + engine::to_string(job.optimizer.state_dtype),
            "--finetune",
            job.lora ? "lora" : "full",
            fmt::format("{}=", keys::model::kQuantization) + nn::to_string(job.quantization)};
  }
};

/// A function that applies one saving to `state`. `request` is the original request. Returns why
/// the row does not apply; empty if it applies.
using ApplySavingFunction = std::string (*)(SavingsState& state, const PlanRequest& request);

std::string remove_all_savings(SavingsState& state, const PlanRequest& /*request*/) {
  Job& job = state.request.job;
  job = make_job_with_precision(std::move(job), engine::Precision::kFp32);
  job.optimizer.state_dtype = engine::OptimizerStateDtype::kFp32;
  job.optimizer.allows_unmatched_patterns = true;
  job.lora.reset();
  job.quantization = nn::Quantization::kNone;
  job.offload = engine::Offload::kNone;
  job.offload_activations = false;
  state.request.auto_offload = state.request.auto_offload_activations = false;
  state.request.constraints.recompute.text = "none";
  return {};
}

std::string enable_16_bit_precision(SavingsState& state, const PlanRequest& request) {
  const bool has_bf16 = supports_precision(*request.gpu().gpu, engine::Precision::kBf16);
  Job& job = state.request.job;
  job = make_job_with_precision(std::move(job), has_bf16 ? engine::Precision::kBf16 : engine::Precision::kFp16);
  return {};
}

std::string enable_recomputation(SavingsState& state, const PlanRequest& /*request*/) {
  state.uses_recomputation = true;
  state.request.constraints.recompute = {};
  return {};
}

std::string enable_8_bit_optimizer_state(SavingsState& state, const PlanRequest& request) {
  if (!request.job.optimizer.supports_compressed_moments()) return "the moments of the optimizer are in fp32";
  state.request.job.optimizer.state_dtype = engine::OptimizerStateDtype::k8Bit;
  return {};
}

std::string use_lora(SavingsState& state, const PlanRequest& request) {
  if (request.job.lora) {
    state.request.job.lora = request.job.lora;
    return {};
  }
  if (!can_use_lora(request.job.frozen_parts)) return "no trained component can have adapters";
  state.request.job.lora = make_lora_settings(request.job, request.flags.lora_rank);
  return {};
}

std::string use_nf4(SavingsState& state, const PlanRequest& /*request*/) {
  if (!state.request.job.lora) return "trained weights cannot be quantized, and LoRA is not enabled";
  state.request.job.quantization = nn::Quantization::kNf4;
  return {};
}

/// The rows in order: name and function.
constexpr std::pair<const char*, ApplySavingFunction> kSavingsRows[] = {{"none", remove_all_savings},
                                                                        {"16 bits", enable_16_bit_precision},
                                                                        {"recomputation", enable_recomputation},
                                                                        {"8-bit states", enable_8_bit_optimizer_state},
                                                                        {"LoRA", use_lora},
                                                                        {"NF4", use_nf4}};

/// Returns the StepConfig of SavingsRow::single_sample_estimate.
StepConfig make_single_sample_config(const SavingsState& state, const DryRunDetail& detail) {
  const StepConstraints& constraints = state.request.constraints;
  const models::RecomputeBlockCounts total_block_counts{.vision = detail.num_vision_blocks,
                                                        .language = detail.num_language_blocks};
  StepConfig step_config{.micro_batch_size = constraints.micro_batch_size.value_or(1),
                         .recompute = state.uses_recomputation ? total_block_counts : models::RecomputeBlockCounts{},
                         .expandable_segments = constraints.expandable_segments};
  step_config.vision_tiles_per_pass = constraints.vision_tiles_per_pass.value_or(step_config.vision_tiles_per_pass);
  step_config.loss_chunk_rows = constraints.loss_chunk_rows.value_or(step_config.loss_chunk_rows);
  return step_config;
}

/// Computes the estimates of a row. `full_plan` is the plan of the original request.
void fill_savings_row(const SavingsState& state, const Plan& full_plan, SavingsRow& row) {
  const Plan plan = make_plan(state.request);
  row.detail = plan.detail;
  if (plan.fits) {
    row.best_estimate = plan.best_estimate;
    row.best_total_bytes = plan.total_bytes();
  }
  PlanEvaluator evaluator({.job = plan.job,
                           .target = state.request.target,
                           .workload = state.request.workload,
                           .limit_bytes = plan.limit.limit_bytes,
                           .worst_cases = PlanEvaluator::WorstCases::kAll});
  row.single_sample_estimate = evaluator.dry_run(make_single_sample_config(state, plan.detail));
  row.single_sample_bytes = full_plan.total_bytes(row.single_sample_estimate);
}

nlohmann::ordered_json make_estimate_json(const StepEstimate& estimate, int64_t total_bytes) {
  return {{"micro_batch_size", estimate.step_config.micro_batch_size},
          {"recompute", make_recompute_blocks_json(estimate.step_config.recompute)},
          {"total_bytes", total_bytes},
          {"step_seconds", estimate.step_seconds},
          {"tokens_per_second", estimate.tokens_per_second},
          {"fits", estimate.fits}};
}

}  // namespace

std::vector<SavingsRow> make_savings_table(const PlanRequest& request, const Plan& plan) {
  SavingsState state{.request = request};
  state.request.with_suggestions = state.request.with_timeline = false;
  state.request.workload.average_step_shapes.clear();
  state.request.evaluation.reset();  // rows compare training
  std::vector<SavingsRow> rows;
  rows.reserve(std::size(kSavingsRows));
  for (const auto& [name, apply] : kSavingsRows) {
    const SavingsState previous_state = state;
    SavingsRow row{
        .name = name, .arguments = {}, .unavailable_reason = apply(state, request), .single_sample_estimate = {}};
    if (row.unavailable_reason.empty()) {
      row.arguments = state.arguments();
      try {
        fill_savings_row(state, plan, row);
      } catch (const UserError& error) {
        // The model cannot be built (kUsage, kBadData), or a sample needs more memory than any GPU
        // has (kDoesNotFit). kFailed is an error of the dry-run process, not of the row.
        if (error.code() == ExitCode::kFailed) throw;
        row = {.name = name, .arguments = {}, .unavailable_reason = error.what(), .single_sample_estimate = {}};
        // A job that is too large may become small enough in a later row.
        if (error.code() != ExitCode::kDoesNotFit) state = previous_state;
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::ordered_json make_savings_json(const std::vector<SavingsRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& row : rows) {
    const bool is_available = row.unavailable_reason.empty();
    nlohmann::ordered_json json{{"name", row.name}, {"arguments", row.arguments}};
    json["absent"] = is_available ? nlohmann::ordered_json() : nlohmann::ordered_json(row.unavailable_reason);
    json["single"] = is_available ? make_estimate_json(row.single_sample_estimate, row.single_sample_bytes)
                                  : nlohmann::ordered_json();
    json["planned"] =
        row.best_estimate ? make_estimate_json(*row.best_estimate, row.best_total_bytes) : nlohmann::ordered_json();
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace vlmtrain::planner
